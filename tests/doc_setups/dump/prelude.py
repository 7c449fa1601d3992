import torch  # noqa: F401

import graphprobe  # noqa: F401
