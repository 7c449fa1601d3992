"""The faults that torch injects for its own tests, each inside of a six-layer transformer, in its forward and backward.

Of Inductor: `cpp.inject_relu_bug_TESTING_ONLY` and `cpp.inject_log1p_bug_TESTING_ONLY`, all their values. Of Dynamo's
backends: every `*_TESTING_ONLY` one; these replace nodes of Dynamo's graph, so `step` is a forward with its backward.
Each is a case as the files of `planted` are, with the user's line besides: `EXPECT["source"]`.
"""

import inspect
from pathlib import Path
from types import SimpleNamespace

import hosts
import planting
import torch
from torch.nn import functional

KINDS = {"compile_error": "crash_compile", "runtime_error": "crash_runtime", "accuracy": "wrong_value"}
INDUCTOR = {
    **{f"inductor_relu_{bug}": ("relu", bug) for bug in KINDS},
    "inductor_log1p_accuracy": ("log1p", "accuracy"),
}
BACKENDS = {
    **{f"backend_relu_{bug}": (f"relu_{bug.removesuffix('_error')}_error_TESTING_ONLY", bug) for bug in KINDS},
    "backend_non_leaf": ("non_leaf_compile_error_TESTING_ONLY", "compile_error"),
}
NAMES = [
    *(f"{name}-{direction}" for name in INDUCTOR for direction in ("forward", "backward")),
    *(f"{name}-{mode}" for name in BACKENDS if name != "backend_non_leaf" for mode in ("forward", "step")),
    "backend_non_leaf-step",  # without gradients every tensor is a leaf
]


class ReluBackward(torch.autograd.Function):
    """The identity, through which only positive gradients pass."""

    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        return torch.relu(grad)


class Log1pBackward(torch.autograd.Function):
    """The identity, through which large gradients pass damped."""

    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        return torch.log1p(grad.abs())


def log1p_forward(h):
    return torch.log1p(h.abs())


def broken(h):
    torch._dynamo.graph_break()
    return h


def line(function, text):
    """`file.py:number` of the one line of a function that holds `text`."""
    lines, first = inspect.getsourcelines(function)
    (found,) = (first + i for i, source in enumerate(lines) if text in source)
    return f"{Path(inspect.getsourcefile(function)).name}:{found}"


ACTIVATION = (hosts.Block.forward, "self.act(")
INDUCTOR_PLACES = {
    ("relu", "forward"): ({"act": functional.relu}, ACTIVATION),
    ("relu", "backward"): ({"inner": ReluBackward.apply}, (ReluBackward.backward, "torch.relu")),
    ("log1p", "forward"): ({"inner": log1p_forward}, (log1p_forward, "torch.log1p")),
    ("log1p", "backward"): ({"inner": Log1pBackward.apply}, (Log1pBackward.backward, "torch.log1p")),
}


def case(name):
    what, _, direction = name.partition("-")
    return inductor_case(*INDUCTOR[what], direction) if what in INDUCTOR else backend_case(*BACKENDS[what], direction)


def inductor_case(op, bug, direction):
    model, place = INDUCTOR_PLACES[op, direction]
    kind = "wrong_gradient" if bug == "accuracy" and direction == "backward" else KINDS[bug]
    return SimpleNamespace(
        GRAD=direction == "backward",
        make=lambda: hosts.transformer(depth=6, **model),
        plant=lambda: planting.inductor(**{f"cpp__inject_{op}_bug_TESTING_ONLY": bug}),
        EXPECT={
            # Whatever ends the C++ compiler is a failed compilation; what the kernel raises is one at run time.
            "kind": f"{kind} crash_compile" if bug == "runtime_error" else kind,
            "stage": "codegen",
            "ops": f"aten.{op}",
            "source": line(*place),
        },
    )


def backend_case(backend, bug, mode):
    leaf = backend.startswith("non_leaf")
    model = {"inner": broken, "at": 2} if leaf else {"act": torch.relu}  # the one function that they replace
    return SimpleNamespace(
        GRAD=mode == "step",
        BACKEND=backend,
        make=lambda: hosts.transformer(depth=6, **model),
        EXPECT={
            "kind": KINDS[bug],
            "stage": "backend",
            "ops": "torch.nn.functional.layer_norm aten.native_layer_norm" if leaf else "torch.relu aten.relu",
            "source": line(hosts.Block.forward, "self.norm1(") if leaf else line(*ACTIVATION),
        },
    )
