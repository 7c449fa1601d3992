"""The lowering of mean divides by the size that the first call had. A call of other size is wrong."""

import torch
from torch._inductor import lowering as lowerings
from torch._inductor.virtualized import V

from diagnose.planting import lowering

COMPILE = {"dynamic": True}


def baked(right, x, axis=None, keepdim=False, *, dtype=None):
    sizes = x.get_size()
    rows = range(len(sizes)) if axis is None else [a % len(sizes) for a in axis]
    count = 1
    for i in rows:
        count *= V.graph.sizevars.optimization_hint(sizes[i])
    total = lowerings.lowerings[torch.ops.aten.sum.dim_IntList](x, list(rows), keepdim)
    return lowerings.lowerings[torch.ops.aten.div.Tensor](total, float(count))


def make():
    return (lambda x: torch.relu(x).mean(1)), (torch.randn(3, 10),), {}


def extra_calls():
    torch.manual_seed(1)
    return [((torch.randn(3, 17),), {})]


PLANT = lowering(torch.ops.aten.mean.dim, baked)
EXPECT = {"kind": "wrong_value", "stage": "lowering", "ops": "aten.mean"}
