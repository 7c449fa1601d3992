"""`dumps`: the dumps that several tests compare, each made once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from compare.pairs import Dumps, Run


@pytest.fixture(scope="session")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Dumps:
    """Equal programs are dumped once with the same options, and once more for the other side of a comparison."""
    from compare.pairs import dumped

    made: dict[object, Path] = {}

    def dump(run: Run, side: str = "candidate", **options: Any) -> Path:
        key = (run, side, *sorted(options.items()))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("dumps") / side
            dumped(run, made[key], **options)
        return made[key]

    return dump
