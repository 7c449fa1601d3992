"""Hypothesis draws the same examples whatever the process has imported, unless random ones are asked for."""

import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import RANDOM


def drawn() -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []

    @given(st.integers(0, 2**60), st.text())
    def draw(number: int, text: str) -> None:
        found.append((number, text))

    draw()
    return found


def test_examples_do_not_depend_on_what_was_imported(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--hypothesis-profile") == RANDOM:
        pytest.skip("random examples were asked for")
    assert settings.default.derandomize
    before = drawn()
    path = tmp_path / "of_many_constants.py"
    path.write_text("\n".join(f"N{k}, T{k} = {10**6 + 7 * k}, 'text {k}'" for k in range(50)), "utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
        assert drawn() == before
    finally:
        del sys.modules[path.stem]
