"""What is known of torch's operators by their names."""

from __future__ import annotations

import pytest

from graphprobe.internals.operators.operators import decomposed_while_traced


@pytest.mark.parametrize("name", ["aten.upsample_bilinear2d.default", "aten.upsample_nearest2d.vec", "aten.dropout"])
def test_operators_that_tracing_replaces_by_python(name: str) -> None:
    assert decomposed_while_traced(name)


@pytest.mark.parametrize("name", ["aten.add.Tensor", "aten.none_such.default", "prims.sin.default", "torch.relu", ""])
def test_operators_that_tracing_keeps_and_what_is_none(name: str) -> None:
    assert not decomposed_while_traced(name)
