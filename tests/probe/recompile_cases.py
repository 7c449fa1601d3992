"""Programs that recompile for one reason each, and the same programs after the remedy.

The line that the report must name carries the comment `# HERE`.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

compiled: Any = functools.partial(torch.compile, backend="eager")


@dataclasses.dataclass(frozen=True)
class Case:
    """One kind of recompilation.

    Attributes:
        fault, repaired: run a program that recompiles, and the one that does not.
        kind, name, values: what the first group of the report must say.
        remedy: a piece of the remedy that `repaired` follows.
    """

    fault: Callable[[], None]
    repaired: Callable[[], None]
    kind: str
    name: str
    values: tuple[str, ...]
    remedy: str


CASES: dict[str, Case] = {}


def case(kind: str, name: str, values: str, remedy: str) -> Callable[[type], type]:
    """Registers a class with the functions `fault` and `repaired`."""

    def register(cls: Any) -> type:
        found = tuple(values.split("|")) if values else ()
        CASES[cls.__name__] = Case(cls.fault, cls.repaired, kind, name, found, remedy)
        return cls  # type: ignore[no-any-return]

    return register


def ones(*sizes: int) -> torch.Tensor:
    return torch.ones(*sizes)


@case("size-changed", "x", "4|5", "mark_dynamic(x, 0)")
class Sizes:
    @staticmethod
    def fault() -> None:
        def f(x: Any) -> Any:
            return x + 1  # HERE

        f = compiled(f)
        for n in (4, 5, 6):
            f(ones(n))

    @staticmethod
    def repaired() -> None:
        f = compiled(lambda x: x + 1)
        for n in (4, 5, 6):
            x = ones(n)
            torch._dynamo.mark_dynamic(x, 0)
            f(x)


@case("size-changed", "x", "4|5|6", "leave dynamic=False out")
class StaticSizes:
    @staticmethod
    def fault() -> None:
        def f(x: Any) -> Any:
            y = 2
            return x + y  # HERE

        f = compiled(f, dynamic=False)
        for n in (4, 5, 6):
            f(ones(n))

    @staticmethod
    def repaired() -> None:
        f = compiled(lambda x: x + 2, dynamic=True)
        for n in (4, 5, 6):
            f(ones(n))


@case("size-changed", "w", "4|5|6", "force_parameter_static_shapes = False")
class ParameterSizes:
    @staticmethod
    def fault() -> None:
        def f(w: Any, x: Any) -> Any:
            return x @ w  # HERE

        f = compiled(f)
        for n in (4, 5, 6):
            f(nn.Parameter(ones(3, n)), ones(2, 3))

    @staticmethod
    def repaired() -> None:
        with torch._dynamo.config.patch(force_parameter_static_shapes=False):
            f = compiled(lambda w, x: x @ w, dynamic=True)
            for n in (4, 5, 6):
                f(nn.Parameter(ones(3, n)), ones(2, 3))


@case("size-zero-one", "x", "1", "mark_unbacked(x, 0)")
class LastBatchOfOne:
    @staticmethod
    def fault() -> None:
        def f(x: Any) -> Any:
            return x + 1  # HERE

        f = compiled(f, dynamic=True)
        for n in (4, 5, 1):
            f(ones(n))

    @staticmethod
    def repaired() -> None:
        f = compiled(lambda x: x + 1)
        for n in (4, 5, 1):
            x = ones(n)
            torch._dynamo.decorators.mark_unbacked(x, 0)
            f(x)


@case("size-condition", "x", "11", "decide it outside")
class BranchOnSize:
    @staticmethod
    def fault() -> None:
        def f(x: Any) -> Any:
            if x.shape[0] > 10:  # HERE
                return x + 1
            return x - 1

        f = compiled(f, dynamic=True)
        for n in (4, 5, 11):
            f(ones(n))

    @staticmethod
    def repaired() -> None:
        small, large = compiled(lambda x: x - 1, dynamic=True), compiled(lambda x: x + 1, dynamic=True)
        for n in (4, 5, 11):
            (large if n > 10 else small)(ones(n))


@case("sizes-equal", "y", "6", "first call with different sizes")
class EqualSizes:
    @staticmethod
    def fault() -> None:
        def f(x: Any, y: Any) -> Any:
            return x.sum() + y.sum()  # HERE

        f = compiled(f, dynamic=True)
        f(ones(4), ones(4))
        f(ones(5), ones(6))

    @staticmethod
    def repaired() -> None:
        f = compiled(lambda x, y: x.sum() + y.sum(), dynamic=True)
        f(ones(5), ones(6))
        f(ones(4), ones(4))


@case("dtype-changed", "x", "float32|float64", "x.to(torch.float32)")
class Dtypes:
    @staticmethod
    def fault() -> None:
        def f(x: Any) -> Any:
            return x * 2  # HERE

        f = compiled(f)
        f(ones(4))
        f(ones(4).double())

    @staticmethod
    def repaired() -> None:
        f = compiled(lambda x: x * 2)
        f(ones(4))
        f(ones(4).double().to(torch.float32))


@case("rank-changed", "x", "1|2", "flatten")
class Ranks:
    @staticmethod
    def fault() -> None:
        def f(x: Any) -> Any:
            return x.sum()  # HERE

        f = compiled(f)
        f(ones(4))
        f(ones(2, 2))

    @staticmethod
    def repaired() -> None:
        f = compiled(lambda x: x.sum())
        f(ones(4))
        f(ones(2, 2).flatten())


@case("stride-changed", "x", "1|4", "x.contiguous()")
class Strides:
    @staticmethod
    def fault() -> None:
        def f(x: Any) -> Any:
            return x + 1  # HERE

        f = compiled(f)
        f(ones(4, 4))
        f(ones(4, 4).t())

    @staticmethod
    def repaired() -> None:
        f = compiled(lambda x: x + 1)
        f(ones(4, 4))
        f(ones(4, 4).t().contiguous())


@case("requires-grad-changed", "x", "False|True", "x.detach()")
class RequiresGrad:
    @staticmethod
    def fault() -> None:
        def f(x: Any) -> Any:
            return x + 1  # HERE

        f = compiled(f)
        f(ones(4))
        f(ones(4).requires_grad_())

    @staticmethod
    def repaired() -> None:
        f = compiled(lambda x: x + 1)
        f(ones(4))
        f(ones(4).requires_grad_().detach())


@case("device-changed", "x", "cpu|meta", "x.to(device)")
class Devices:
    @staticmethod
    def fault() -> None:
        def f(x: Any) -> Any:
            return x + 1  # HERE

        f = compiled(f)
        f(ones(4))
        f(torch.empty(4, device="meta"))

    @staticmethod
    def repaired() -> None:
        f = compiled(lambda x: x + 1)
        f(ones(4).to("meta"))
        f(torch.empty(4, device="meta"))


@case("tensor-state-changed", "x", "an ordinary tensor|an inference tensor", "inference_mode")
class InferenceTensor:
    @staticmethod
    def fault() -> None:
        def f(x: Any) -> Any:
            return x + 1  # HERE

        f = compiled(f)
        f(ones(4))
        with torch.inference_mode():
            x = ones(4)
        f(x)

    @staticmethod
    def repaired() -> None:
        f = compiled(lambda x: x + 1)
        f(ones(4))
        with torch.inference_mode():
            x = ones(4)
        f(x.clone())


@case("tensor-class-changed", "x", "a tensor|torch.nn.parameter.Parameter", "x.detach()")
class Parameters:
    @staticmethod
    def fault() -> None:
        def f(x: Any) -> Any:
            return x + 1  # HERE

        f = compiled(f)
        f(ones(4))
        f(nn.Parameter(ones(4)))

    @staticmethod
    def repaired() -> None:
        f = compiled(lambda x: x + 1)
        f(ones(4))
        f(nn.Parameter(ones(4)).detach())


@case("dynamic-mark-changed", "", "", "before the very first call")
class MarkedLate:
    @staticmethod
    def fault() -> None:
        f = compiled(lambda x: x + 1)
        f(ones(4))
        x = ones(4)
        torch._dynamo.mark_dynamic(x, 0)
        f(x)

    @staticmethod
    def repaired() -> None:
        f = compiled(lambda x: x + 1)
        x = ones(4)
        torch._dynamo.mark_dynamic(x, 0)
        f(x)
        f(ones(4))


@case("alias-changed", "x and y", "different tensors|one tensor", "x.clone()")
class Aliases:
    @staticmethod
    def fault() -> None:
        def f(x: Any, y: Any) -> Any:
            return x + y  # HERE

        f = compiled(f)
        f(ones(4), ones(4))
        x = ones(4)
        f(x, x)

    @staticmethod
    def repaired() -> None:
        f = compiled(lambda x, y: x + y)
        f(ones(4), ones(4))
        x = ones(4)
        f(x, x.clone())


@case("int-changed", "n", "3|4", "torch.tensor(3)")
class Ints:
    @staticmethod
    def fault() -> None:
        def f(x: Any, n: Any) -> Any:
            return x + n  # HERE

        f = compiled(f)
        for n in (3, 4, 5):
            f(ones(4), n)

    @staticmethod
    def repaired() -> None:
        f = compiled(lambda x, n: x + n)
        for n in (3, 4, 5):
            f(ones(4), torch.tensor(n))


@case("int-changed", "n", "2|3|4", "hoist that out")
class LoopCount:
    @staticmethod
    def fault() -> None:
        def f(x: Any, n: Any) -> Any:
            for _ in range(n):  # HERE
                x = x + 1
            return x

        f = compiled(f)
        for n in (2, 3, 4):
            f(ones(4), n)

    @staticmethod
    def repaired() -> None:
        step = compiled(lambda x: x + 1)
        for n in (2, 3, 4):
            x = ones(4)
            for _ in range(n):
                x = step(x)


@case("float-changed", "p", "0.1|0.2", "dynamic=True")
class Floats:
    @staticmethod
    def fault() -> None:
        def f(x: Any, p: Any) -> Any:
            return x * p  # HERE

        f = compiled(f)
        for p in (0.1, 0.2, 0.3):
            f(ones(4), p)

    @staticmethod
    def repaired() -> None:
        f = compiled(lambda x, p: x * p, dynamic=True)
        for p in (0.1, 0.2, 0.3):
            f(ones(4), p)


@case("value-condition", "n", "7", "decide it outside")
class BranchOnInt:
    @staticmethod
    def fault() -> None:
        def f(x: Any, n: Any) -> Any:
            if n > 5:  # HERE
                return x + n
            return x - n

        f = compiled(f, dynamic=True)
        for n in (2, 3, 7):
            f(ones(4), n)

    @staticmethod
    def repaired() -> None:
        small, large = compiled(lambda x, n: x - n, dynamic=True), compiled(lambda x, n: x + n, dynamic=True)
        for n in (2, 3, 7):
            (large if n > 5 else small)(ones(4), n)


@case("bool-changed", "flag", "True|False", "choose outside")
class Bools:
    @staticmethod
    def fault() -> None:
        def f(x: Any, flag: Any) -> Any:
            return x + 1 if flag else x * 2  # HERE

        f = compiled(f)
        f(ones(4), True)
        f(ones(4), False)

    @staticmethod
    def repaired() -> None:
        compiled(lambda x: x + 1)(ones(4))
        compiled(lambda x: x * 2)(ones(4))


@case("string-changed", "mode", "'sum'|'mean'", "choose outside")
class Strings:
    @staticmethod
    def fault() -> None:
        def f(x: Any, mode: Any) -> Any:
            return x.sum() if mode == "sum" else x.mean()  # HERE

        f = compiled(f)
        f(ones(4), "sum")
        f(ones(4), "mean")

    @staticmethod
    def repaired() -> None:
        compiled(lambda x: x.sum())(ones(4))
        compiled(lambda x: x.mean())(ones(4))


@case("none-changed", "mask", "None|a tensor", "neutral tensor")
class Nones:
    @staticmethod
    def fault() -> None:
        def f(x: Any, mask: Any) -> Any:
            if mask is None:  # HERE
                return x * 2
            return x * 2 * mask

        f = compiled(f)
        f(ones(4), None)
        f(ones(4), ones(4))

    @staticmethod
    def repaired() -> None:
        f = compiled(lambda x, mask: x * 2 * mask)
        f(ones(4), ones(4))
        f(ones(4), ones(4))


@case("type-changed", "x", "a tensor|list", "one type")
class Types:
    @staticmethod
    def fault() -> None:
        def f(x: Any) -> Any:
            return x[0] + 1  # HERE

        f = compiled(f)
        f(ones(4))
        f([ones(4)])

    @staticmethod
    def repaired() -> None:
        f = compiled(lambda x: x[0] + 1)
        f([ones(4)])
        f([ones(4)])


@case("function-changed", "h", "<lambda>", "once, outside of the loop")
class FreshFunctions:
    @staticmethod
    def fault() -> None:
        def f(x: Any, h: Any) -> Any:
            return h(x)  # HERE

        f = compiled(f)
        for code in ("lambda x: x + 1", "lambda x: x + 1"):
            f(ones(4), eval(code))

    @staticmethod
    def repaired() -> None:
        f = compiled(lambda x, h: h(x))
        h = eval("lambda x: x + 1")
        f(ones(4), h)
        f(ones(4), h)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@case("object-changed", "color", "Color.BLUE", "only what the function needs of it")
class Enums:
    @staticmethod
    def fault() -> None:
        def f(x: Any, color: Any) -> Any:
            return x * (2 if color is Color.RED else 3)  # HERE

        f = compiled(f)
        f(ones(4), Color.RED)
        f(ones(4), Color.BLUE)

    @staticmethod
    def repaired() -> None:
        f = compiled(lambda x, scale: x * scale)
        f(ones(4), torch.tensor(2))
        f(ones(4), torch.tensor(3))


@case("object-freed", "optimizer", "", "make it once and keep it")
class FreshOptimizers:
    @staticmethod
    def _step(parameter: nn.Parameter, optimizer: Any, step: Any) -> None:
        parameter.grad = ones(4)
        step(optimizer)

    @staticmethod
    def fault() -> None:
        @compiled
        def step(optimizer: Any) -> None:
            optimizer.step()  # HERE

        parameter = nn.Parameter(ones(4))
        for _ in range(2):
            FreshOptimizers._step(parameter, torch.optim.SGD([parameter], lr=0.1), step)

    @staticmethod
    def repaired() -> None:
        parameter = nn.Parameter(ones(4))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        step = compiled(lambda optimizer: optimizer.step())
        for _ in range(2):
            FreshOptimizers._step(parameter, optimizer, step)


class Scaled(nn.Module):
    def __init__(self, scale: Any) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Any) -> Any:
        return x * self.scale  # HERE


@case("attribute-changed", "self.scale", "1|2|3", "register_buffer")
class ModuleAttribute:
    @staticmethod
    def fault() -> None:
        module = Scaled(1)
        f = compiled(module)
        for scale in (1, 2, 3):
            module.scale = scale
            f(ones(4))

    @staticmethod
    def repaired() -> None:
        module = Scaled(0)
        del module.scale
        module.register_buffer("scale", torch.tensor(1))
        f = compiled(module)
        for scale in (1, 2, 3):
            module.scale.fill_(scale)
            f(ones(4))


@case("instance-changed", "self.scale", "1|2|3", "the instances share one compiled function")
class Instances:
    @staticmethod
    def fault() -> None:
        for scale in (1, 2, 3):
            compiled(Scaled(scale))(ones(4))

    @staticmethod
    def repaired() -> None:
        with torch._dynamo.config.patch(allow_unspec_int_on_nn_module=True):
            for scale in (2, 3, 4):
                compiled(Scaled(scale), dynamic=True)(ones(4))


class Wide(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.parts = [1.5] * number

    def forward(self, x: Any) -> Any:
        for part in self.parts:  # HERE
            x = x * part
        return x


@case("instance-changed", "self.parts", "1|2", "the instances share one compiled function")
class InstancesOfOtherLength:
    @staticmethod
    def fault() -> None:
        for number in (1, 2):
            compiled(Wide(number))(ones(4))

    @staticmethod
    def repaired() -> None:
        for _ in range(2):
            compiled(Wide(2))(ones(4))


def behind(decorated: Any) -> Any:
    @functools.wraps(decorated)
    def wrapper(*args: Any) -> Any:
        return decorated(*args)

    return wrapper


def doubled(x: Any) -> Any:
    return x * 2


def halved(x: Any) -> Any:
    return x / 2


MODULE = "probe.recompile_cases."


@case("shared-code", "", f"{MODULE}doubled|{MODULE}halved", "compile a function of its own for each")
class FunctionsBehindOneDecorator:
    @staticmethod
    def fault() -> None:
        for function in (doubled, halved):
            compiled(behind(function))(ones(4))

    @staticmethod
    def repaired() -> None:
        a, b = behind(doubled), behind(halved)

        def run_a(*args: Any, **kwargs: Any) -> Any:
            return a(*args, **kwargs)

        def run_b(*args: Any, **kwargs: Any) -> Any:
            return b(*args, **kwargs)

        compiled(run_a)(ones(4))
        compiled(run_b)(ones(4))


class Shared(nn.Module):
    @behind
    def forward(self, *args: Any) -> Any:
        return sum(args)


class Sharing(nn.Module):
    forward = Shared.forward


@case("shared-code", "", f"{MODULE}Shared|{MODULE}Sharing", "isolate_recompiles=True")
class ModelsThatShareAForward:
    @staticmethod
    def fault() -> None:
        compiled(Shared())(ones(4))
        compiled(Sharing())(ones(4), ones(4))

    @staticmethod
    def repaired() -> None:
        compiled(Shared(), isolate_recompiles=True)(ones(4))
        compiled(Sharing(), isolate_recompiles=True)(ones(4), ones(4))


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        return self.drop(x) + 1  # HERE


@case("training-mode-changed", "self.drop.training", "True|False", "eval() once")
class TrainingMode:
    @staticmethod
    def fault() -> None:
        module = Dropping()
        f = compiled(module)
        f(ones(4))
        module.eval()
        f(ones(4))

    @staticmethod
    def repaired() -> None:
        f = compiled(Dropping().eval())
        f(ones(4))
        f(ones(4))


SCALE = 1


@case("global-changed", "SCALE", "1|2|3", "pass SCALE as an argument")
class Globals:
    @staticmethod
    def fault() -> None:
        global SCALE

        def f(x: Any) -> Any:
            return x * SCALE  # HERE

        f = compiled(f)
        for SCALE in (1, 2, 3):  # noqa: B007
            f(ones(4))

    @staticmethod
    def repaired() -> None:
        f = compiled(lambda x, scale: x * scale)
        for scale in (1, 2, 3):
            f(ones(4), torch.tensor(scale))


def scaler(scale: Any) -> Any:
    def f(x: Any) -> Any:
        return x * scale  # HERE

    return f


@case("closure-changed", "scale", "1|2", "make the function once")
class Closures:
    @staticmethod
    def fault() -> None:
        for scale in (1, 2):
            compiled(scaler(scale))(ones(4))

    @staticmethod
    def repaired() -> None:
        f = compiled(scaler(2))
        f(ones(4))
        f(ones(4))


@case("length-changed", "xs", "1|2", "torch.stack")
class Lengths:
    @staticmethod
    def fault() -> None:
        def f(xs: Any) -> Any:
            return sum(xs)  # HERE

        f = compiled(f)
        f([ones(4)])
        f([ones(4), ones(4)])

    @staticmethod
    def repaired() -> None:
        f = compiled(lambda xs: xs.sum(0), dynamic=True)
        f(torch.stack([ones(4)] * 2))
        f(torch.stack([ones(4)] * 3))


@case("keys-changed", "batch", "'a'|'b'", "same keys, in the same order")
class Keys:
    @staticmethod
    def fault() -> None:
        def f(batch: Any) -> Any:
            return sum(batch.values())  # HERE

        f = compiled(f)
        f({"a": ones(4)})
        f({"b": ones(4)})

    @staticmethod
    def repaired() -> None:
        f = compiled(lambda batch: sum(batch.values()))
        f({"a": ones(4), "b": ones(4)})
        f({"a": ones(4), "b": torch.zeros(4)})


@case("grad-mode-changed", "", "", "no_grad")
class GradMode:
    @staticmethod
    def fault() -> None:
        f = compiled(lambda x: x + 1)
        f(ones(4))
        with torch.no_grad():
            f(ones(4))

    @staticmethod
    def repaired() -> None:
        f = compiled(lambda x: x + 1)
        for _ in range(2):
            with torch.no_grad():
                f(ones(4))


@case("autocast-changed", "", "", "autocast")
class Autocast:
    @staticmethod
    def fault() -> None:
        f = compiled(lambda x: x + 1)
        f(ones(4))
        with torch.autocast("cpu"):
            f(ones(4))

    @staticmethod
    def repaired() -> None:
        f = compiled(lambda x: x + 1)
        for _ in range(2):
            with torch.autocast("cpu"):
                f(ones(4))


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@case("global-state-changed", "", "", "before the first call")
class DefaultDtype:
    @staticmethod
    def fault() -> None:
        f, x = compiled(lambda x: x + 1), ones(4)
        f(x)
        with default_dtype(torch.float64):
            f(x)

    @staticmethod
    def repaired() -> None:
        f, x = compiled(lambda x: x + 1), ones(4)
        with default_dtype(torch.float64):
            f(x)
            f(x)


@case("function-mode-changed", "", "", "same modes")
class DeviceMode:
    @staticmethod
    def fault() -> None:
        f = compiled(lambda x: x + torch.ones(4))
        x = ones(4)
        f(x)
        with torch.device("cpu"):
            f(x)

    @staticmethod
    def repaired() -> None:
        f = compiled(lambda x: x + torch.ones(4))
        x = ones(4)
        for _ in range(2):
            with torch.device("cpu"):
                f(x)


@case("backend-changed", "", "", "make the backend once")
class FreshBackends:
    @staticmethod
    def fault() -> None:
        def f(x: Any) -> Any:
            return x + 1

        for _ in range(2):

            def backend(gm: Any, inputs: Any) -> Any:
                return gm

            torch.compile(f, backend=backend)(ones(4))

    @staticmethod
    def repaired() -> None:
        def f(x: Any) -> Any:
            return x + 1

        def backend(gm: Any, inputs: Any) -> Any:
            return gm

        for _ in range(2):
            torch.compile(f, backend=backend)(ones(4))
