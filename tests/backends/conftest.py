"""One parent for every program of a test session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from faults.zygote import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    started = Zygote()
    yield started
    started.close()
