"""`dumps`: the dumps that several tests compare, each made once."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from compare.pairs import Dumps, Run


@pytest.fixture(scope="session")
def training(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """`training(name, data)`: the dump of a training with one of the changes of `gpt_training`, made once."""
    from compare.gpt_training import dumped

    return functools.cache(lambda name, data: dumped(name, tmp_path_factory.mktemp("training"), data))


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
