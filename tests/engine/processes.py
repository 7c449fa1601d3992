"""Other processes: whether one has ended, and what it wrote."""

import time
from pathlib import Path


def gone(pid: int, *, within_s: float = 10.0) -> bool:
    """Whether the process ends within some time; a zombie has ended."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def written(path: Path) -> int:
    """The number that another process writes into a file."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if path.exists() and (text := path.read_text(encoding="ascii")):
            return int(text)
        time.sleep(0.02)
    raise AssertionError(f"{path} was not written")
