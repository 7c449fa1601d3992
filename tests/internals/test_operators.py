"""What is known of torch's operators by their names."""

from graphprobe.internals.operators.operators import decomposed_while_traced


def test_which_operators_tracing_replaces_by_python() -> None:
    for name in ("aten.upsample_bilinear2d.default", "aten.upsample_nearest2d.vec", "aten.dropout"):
        assert decomposed_while_traced(name)
    for name in ("aten.add.Tensor", "aten.none_such.default", "prims.sin.default", "torch.relu", ""):
        assert not decomposed_while_traced(name)
