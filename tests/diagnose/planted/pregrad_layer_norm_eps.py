"""A pre-grad pass gives every layer norm another eps, in a transformer that is trained."""

from torch.nn import functional

from diagnose.hosts import transformer
from diagnose.planting import graph_of, inductor

GRAD = True


def larger(given):
    for node in graph_of(given).nodes:
        if node.target is functional.layer_norm:
            node.args = (*node.args[:4], 1e-2)


def make():
    return transformer(depth=2, at=1)


PLANT = inductor(pre_grad_custom_pass=larger)
EXPECT = {
    "kind": "wrong_value wrong_gradient",
    "stage": "pre_grad",
    "ops": "torch.nn.functional.layer_norm torch.layer_norm aten.native_layer_norm",
}
