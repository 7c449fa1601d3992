"""What a program has registered of an operator: its fake kernel, what that promises, and where both are."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager
from typing import Any

import torch

from graphprobe.internals.names import require
from graphprobe.internals.operators.operators import BUILT_IN_NAMESPACES, Overload
from graphprobe.internals.quiet import quiet
from graphprobe.internals.tensors import tree_map

PURPOSE = "holding operators against their fake kernels"

OF_NO_PROGRAM = BUILT_IN_NAMESPACES.union(
    "inductor_prims _quantized quantization quantized_decomposed _c10d_functional_autograd _dtensor _native _test "
    "debug_mode_ops debugprims export static_runtime flex_lib fsdp onnx onnx_symbolic streams graphprobe".split()
)
"""Namespaces of operators that no program has registered."""


class Promise:
    """What the fake kernel of an operator makes of a call's arguments.

    Attributes:
        result: with fake tensors; None if there is none.
        arguments: the fake tensors in the place of the real ones.
        raised: what the fake kernel itself raised; not what torch raises where it cannot go on.
    """

    def __init__(self, op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.result: Any = None
        self.arguments: list[Any] = []
        self.raised: Exception | None = None
        self._environment = require("torch.fx.experimental.symbolic_shapes", "ShapeEnv", purpose=PURPOSE)()
        self._sizes: dict[str, int] = {}
        mode = require("torch._subclasses.fake_tensor", "FakeTensorMode", purpose=PURPOSE)(shape_env=self._environment)

        def fake(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            self.arguments.append(mode.from_tensor(value, static_shapes=True))
            return self.arguments[-1]

        try:
            with quiet(), mode:
                given, named = tree_map(fake, (args, kwargs))
                self.result = op(*given, **named)
        except Exception as error:
            own = fake_kernel_of(op)
            frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
            if own is not None and own.__code__ in frames and not type(error).__module__.startswith("torch"):
                self.raised = error

    def fits(self, size: Any, real: int) -> bool:
        """Whether a size that was promised, perhaps as a symbol, may be the real one."""
        if isinstance(size, int):
            return size == real
        expression = size.node.expr
        bounds = self._environment.bound_sympy(expression)
        return bool(bounds.lower <= real <= bounds.upper) and self._sizes.setdefault(str(expression), real) == real

    def shown(self, size: Any) -> str:
        """A size that was promised as text; of a symbol the least and the largest that it may be."""
        if isinstance(size, int):
            return str(size)
        bounds = self._environment.bound_sympy(size.node.expr)
        end = f" to {bounds.upper}" if str(bounds.upper).isdecimal() else " or more"
        return f"{bounds.lower}{end}"


def is_of_torch(namespace: str) -> bool:
    """Whether operators of a namespace are torch's own, or graphprobe's."""
    return namespace in OF_NO_PROGRAM


def has_own() -> bool:
    """Whether the program, or a library that it loads, has registered operators."""
    names: list[str] = require("torch._C", "_dispatch_get_all_op_names", purpose=PURPOSE)()
    return not all(is_of_torch(name.partition("::")[0]) for name in names)


def name_of(op: Overload) -> str:
    """As torch registers it: `namespace::name`, and the overload behind a period if it has a name."""
    return str(op._schema.name) + (f".{op._schema.overload_name}" if op._schema.overload_name else "")


def fake_kernel_of(op: Overload) -> Any:
    """The program's function that is the operator's fake kernel; None where there is none, or none in Python."""
    registry = require("torch._library.simple_registry", "singleton", purpose=PURPOSE)
    entry = registry.get(name_of(op))
    kernel = entry.fake_impl.kernel if entry is not None else None
    defined = _defined(op)
    if defined is not None:
        found = defined._abstract_fn
    else:
        found = kernel.func if kernel is not None else None
        while inspect.isfunction(found) and found.__module__ == "torch.library":  # torch's own, around the program's
            found = inspect.getclosurevars(found).nonlocals.get("func")
    return inspect.unwrap(found) if inspect.isfunction(found) else None


def kernel_of(op: Overload) -> Callable[..., Any] | None:
    """The function that `torch.library.custom_op` made the operator of; None of other operators."""
    defined = _defined(op)
    return None if defined is None else inspect.unwrap(defined._init_fn)


def kernels_named(names: Set[str]) -> list[Callable[..., Any]]:
    """The functions that `torch.library.custom_op` made operators of whose namespace and name are both among these."""
    table = require("torch._library.custom_ops", "OPDEFS", purpose=PURPOSE)
    return [inspect.unwrap(one._init_fn) for key, one in table.items() if names >= {*key.partition(".")[0].split("::")}]


def _defined(op: Overload) -> Any:
    table = require("torch._library.custom_ops", "OPDEFS", purpose=PURPOSE)
    return table.get(name_of(op))


@contextmanager
def without_fakes(names: Iterable[str]) -> Iterator[None]:
    """Operators of these names, as `name_of` gives them, have no fake kernel, so that Dynamo leaves them uncompiled."""
    registry = require("torch._library.simple_registry", "singleton", purpose=PURPOSE)
    unsupported = require("torch._subclasses.fake_tensor", "UnsupportedOperatorException", purpose=PURPOSE)
    kernel = require("torch._library.utils", "Kernel", purpose=PURPOSE)

    def refuse(name: str) -> Callable[..., Any]:
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        op = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")

        def fake(*args: Any, **kwargs: Any) -> Any:
            raise unsupported(op)

        return fake

    made = [(registry.find(name).fake_impl.kernels, kernel(refuse(name), "graphprobe")) for name in names]
    for kernels, one in made:
        kernels.append(one)
    try:
        yield
    finally:
        for kernels, one in made:
            kernels.remove(one)
