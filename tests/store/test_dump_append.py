from __future__ import annotations

import os
from pathlib import Path

import pytest

from graphprobe.store.manifest import AppendFile


def test_the_header_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "a"
    file = AppendFile(path, header=b"H\n")
    assert path.read_bytes() == b""
    assert file.growth_bytes(b"1\n") == 4
    file.append(b"1\n")
    assert file.growth_bytes(b"2\n") == 2
    file.append(b"2\n")
    file.close()
    again = AppendFile(path, header=b"H\n")
    again.append(b"3\n")
    again.take_back(2)
    again.append(b"4\n")
    again.close()
    assert path.read_bytes() == b"H\n1\n2\n4\n"


@pytest.mark.parametrize("can_truncate", [True, False])
def test_a_line_of_which_only_a_part_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_truncate: bool) -> None:
    path = tmp_path / "a"
    file = AppendFile(path, header=b"H\n")
    file.append(b"first\n")
    write = os.write

    def refuse(*_: object) -> None:
        raise OSError

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
        if not can_truncate:
            patch.setattr(os, "ftruncate", refuse)
        with pytest.raises(OSError, match="No space left"):
            file.append(b"second\n")
    file.append(b"third\n")
    file.close()
    torn = b"" if can_truncate else b"sec\n"
    assert path.read_bytes() == b"H\nfirst\n" + torn + b"third\n"
