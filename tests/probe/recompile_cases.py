"""Programs that recompile for one reason each, and the same programs after the remedy.

The line that the report must name carries the comment `# HERE`.
"""

import dataclasses
import enum
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

compiled: Any = functools.partial(torch.compile, backend="eager")
ones = torch.ones


@dataclasses.dataclass(frozen=True)
class Case:
    """One kind of recompilation.

    Attributes:
        kind, name, values: what the first group of the report must say; `|` is between values.
        remedy: a piece of the remedy that `repaired` follows.
        fault, repaired: run a program that recompiles, and the one that does not.
        where: the function with the line that the report must name, unless it is that of `fault`.
    """

    kind: str
    name: str
    values: str
    remedy: str
    fault: Callable[[], None]
    repaired: Callable[[], None]
    where: Any = None


class Calls:
    """Compiles a function, and calls it with each of `arguments`: a tuple of them, or the only one."""

    def __init__(self, function: Any, *arguments: Any, **options: Any) -> None:
        self.function, self.arguments, self.options = function, arguments, options

    def __call__(self) -> None:
        fast = compiled(self.function, **self.options)
        for given in self.arguments:
            fast(*given) if isinstance(given, tuple) else fast(given)


def in_turn(*programs: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        for program in programs:
            program()

    return run


def within(function: Any, *contexts: Callable[[], Any]) -> Callable[[], None]:
    """Calls a compiled function once in each context."""
    x = ones(4)

    def run() -> None:
        fast = compiled(function)
        for context in contexts:
            with context():
                fast(x)

    return run


def configured(program: Callable[[], None], **settings: Any) -> Callable[[], None]:
    def run() -> None:
        with torch._dynamo.config.patch(**settings):
            program()

    return run


def dynamic(x: Any, mark: Callable[[Any, int], None] = torch._dynamo.mark_dynamic) -> Any:
    mark(x, 0)
    return x


def inference() -> torch.Tensor:
    with torch.inference_mode():
        return ones(4)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def plus_one(x: Any) -> Any:
    return x + 1  # HERE


def plus_two(x: Any) -> Any:
    y = 2
    return x + y  # HERE


def doubled(x: Any) -> Any:
    return x * 2  # HERE


def halved(x: Any) -> Any:
    return x / 2


def converted(x: Any, dtype: Any) -> Any:
    return x.to(dtype) + 1  # HERE


def total(x: Any) -> Any:
    return x.sum()  # HERE


def product(w: Any, x: Any) -> Any:
    return x @ w  # HERE


def both_totals(x: Any, y: Any) -> Any:
    return x.sum() + y.sum()  # HERE


def added(x: Any, y: Any) -> Any:
    return x + y  # HERE


def plus(x: Any, n: Any) -> Any:
    return x + n  # HERE


def times(x: Any, p: Any) -> Any:
    return x * p  # HERE


def by_size(x: Any) -> Any:
    if x.shape[0] > 10:  # HERE
        return x + 1
    return x - 1


def by_number(x: Any, n: Any) -> Any:
    if n > 5:  # HERE
        return x + n
    return x - n


def repeated(x: Any, n: Any) -> Any:
    for _ in range(n):  # HERE
        x = x + 1
    return x


def by_flag(x: Any, flag: Any) -> Any:
    return x + 1 if flag else x * 2  # HERE


def by_mode(x: Any, mode: Any) -> Any:
    return x.sum() if mode == "sum" else x.mean()  # HERE


def masked(x: Any, mask: Any) -> Any:
    if mask is None:  # HERE
        return x * 2
    return x * 2 * mask


def first(x: Any) -> Any:
    return x[0] + 1  # HERE


def applied(x: Any, h: Any) -> Any:
    return h(x)  # HERE


def fresh_functions() -> None:
    fast = compiled(applied)
    for _ in range(2):
        fast(ones(4), eval("lambda x: x + 1"))


class Color(enum.Enum):
    RED = 1
    BLUE = 2


def by_color(x: Any, color: Any) -> Any:
    return x * (2 if color is Color.RED else 3)  # HERE


def step(optimizer: Any) -> None:
    optimizer.step()  # HERE


def two_steps(make: Callable[[Any], Any]) -> None:
    parameter, fast = nn.Parameter(ones(4)), compiled(step)
    for _ in range(2):
        parameter.grad = ones(4)
        fast(make(parameter))


def sgd(parameter: Any) -> Any:
    return torch.optim.SGD([parameter], lr=0.1)


class Scaled(nn.Module):
    def __init__(self, scale: Any) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Any) -> Any:
        return x * self.scale  # HERE


def changed_attribute() -> None:
    module = Scaled(1)
    fast = compiled(module)
    for scale in (1, 2, 3):
        module.scale = scale
        fast(ones(4))


def changed_buffer() -> None:
    module = Scaled(0)
    del module.scale
    module.register_buffer("scale", torch.tensor(1))
    fast = compiled(module)
    for scale in (1, 2, 3):
        module.scale.fill_(scale)
        fast(ones(4))


class Wide(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.parts = [1.5] * number

    def forward(self, x: Any) -> Any:
        for part in self.parts:  # HERE
            x = x * part
        return x


def behind(decorated: Any) -> Any:
    @functools.wraps(decorated)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return decorated(*args, **kwargs)

    return wrapper


behind_doubled, behind_halved = behind(doubled), behind(halved)


class Shared(nn.Module):
    @behind
    def forward(self, *args: Any) -> Any:
        return sum(args)


class Sharing(nn.Module):
    forward = Shared.forward


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        return self.drop(x) + 1  # HERE


def trained_and_evaluated() -> None:
    module = Dropping()
    fast = compiled(module)
    fast(ones(4))
    module.eval()
    fast(ones(4))


SCALE = 1


def scaled_by_global(x: Any) -> Any:
    return x * SCALE  # HERE


def changed_global() -> None:
    global SCALE
    fast = compiled(scaled_by_global)
    for SCALE in (1, 2, 3):  # noqa: B007
        fast(ones(4))


def scaler(scale: Any) -> Any:
    def f(x: Any) -> Any:
        return x * scale  # HERE

    return f


def summed(xs: Any) -> Any:
    return sum(xs)  # HERE


def of_batch(batch: Any) -> Any:
    return sum(batch.values())  # HERE


def backend() -> Any:
    return lambda gm, inputs: gm


MODULE = "probe.recompile_cases."
one_backend = backend()
autocast, float64 = functools.partial(torch.autocast, "cpu"), functools.partial(default_dtype, torch.float64)
on_cpu = functools.partial(torch.device, "cpu")
unbacked = functools.partial(dynamic, mark=torch._dynamo.decorators.mark_unbacked)
parameters = [(nn.Parameter(ones(3, n)), ones(2, 3)) for n in (4, 5, 6)]
numbers = [(ones(4), torch.tensor(n)) for n in (1, 2, 3)]

CASES = {
    "Sizes": Case(
        *("size-changed", "x", "4|5", "mark_dynamic(x, 0)"),
        fault=Calls(plus_one, ones(4), ones(5), ones(6)),
        repaired=Calls(plus_one, dynamic(ones(4)), dynamic(ones(5)), dynamic(ones(6))),
    ),
    "StaticSizes": Case(
        *("size-changed", "x", "4|5|6", "leave dynamic=False out"),
        fault=Calls(plus_two, ones(4), ones(5), ones(6), dynamic=False),
        repaired=Calls(plus_two, ones(4), ones(5), ones(6), dynamic=True),
    ),
    "ParameterSizes": Case(
        *("size-changed", "w", "4|5|6", "force_parameter_static_shapes = False"),
        fault=Calls(product, *parameters),
        repaired=configured(Calls(product, *parameters, dynamic=True), force_parameter_static_shapes=False),
    ),
    "LastBatchOfOne": Case(
        *("size-zero-one", "x", "1", "mark_unbacked(x, 0)"),
        fault=Calls(plus_one, ones(4), ones(5), ones(1), dynamic=True),
        repaired=Calls(plus_one, unbacked(ones(4)), unbacked(ones(5)), unbacked(ones(1))),
    ),
    "BranchOnSize": Case(
        *("size-condition", "x", "11", "decide it outside"),
        fault=Calls(by_size, ones(4), ones(5), ones(11), dynamic=True),
        repaired=in_turn(
            Calls(lambda x: x - 1, ones(4), ones(5), dynamic=True),
            Calls(plus_one, ones(11), dynamic=True),
        ),
    ),
    "EqualSizes": Case(
        *("sizes-equal", "y", "6", "first call with different sizes"),
        fault=Calls(both_totals, (ones(4), ones(4)), (ones(5), ones(6)), dynamic=True),
        repaired=Calls(both_totals, (ones(5), ones(6)), (ones(4), ones(4)), dynamic=True),
    ),
    "Dtypes": Case(
        *("dtype-changed", "x", "float32|float64", "x.to(torch.float32)"),
        fault=Calls(doubled, ones(4), ones(4).double()),
        repaired=Calls(doubled, ones(4), ones(4).double().to(torch.float32)),
    ),
    "DtypesAsArguments": Case(
        *("constant-changed", "dtype", "torch.float64|torch.float16", "choose outside"),
        fault=Calls(converted, (ones(4), torch.float64), (ones(4), torch.float16)),
        repaired=in_turn(Calls(lambda x: x.double() + 1, ones(4)), Calls(lambda x: x.half() + 1, ones(4))),
    ),
    "Ranks": Case(
        *("rank-changed", "x", "1|2", "flatten"),
        fault=Calls(total, ones(4), ones(2, 2)),
        repaired=Calls(total, ones(4), ones(2, 2).flatten()),
    ),
    "Strides": Case(
        *("stride-changed", "x", "1|4", "x.contiguous()"),
        fault=Calls(plus_one, ones(4, 4), ones(4, 4).t()),
        repaired=Calls(plus_one, ones(4, 4), ones(4, 4).t().contiguous()),
    ),
    "RequiresGrad": Case(
        *("requires-grad-changed", "x", "False|True", "x.detach()"),
        fault=Calls(plus_one, ones(4), ones(4).requires_grad_()),
        repaired=Calls(plus_one, ones(4), ones(4).requires_grad_().detach()),
    ),
    "Devices": Case(
        *("device-changed", "x", "cpu|meta", "x.to(device)"),
        fault=Calls(plus_one, ones(4), torch.empty(4, device="meta")),
        repaired=Calls(plus_one, ones(4).to("meta"), torch.empty(4, device="meta")),
    ),
    "InferenceTensor": Case(
        *("tensor-state-changed", "x", "an ordinary tensor|an inference tensor", "inference_mode"),
        fault=Calls(plus_one, ones(4), inference()),
        repaired=Calls(plus_one, ones(4), inference().clone()),
    ),
    "Parameters": Case(
        *("tensor-class-changed", "x", "a tensor|torch.nn.parameter.Parameter", "x.detach()"),
        fault=Calls(plus_one, ones(4), nn.Parameter(ones(4))),
        repaired=Calls(plus_one, ones(4), nn.Parameter(ones(4)).detach()),
    ),
    "MarkedLate": Case(
        *("dynamic-mark-changed", "", "", "before the very first call"),
        fault=Calls(plus_one, ones(4), dynamic(ones(4))),
        repaired=Calls(plus_one, dynamic(ones(4)), ones(4)),
    ),
    "Aliases": Case(
        *("alias-changed", "x and y", "different tensors|one tensor", "x.clone()"),
        fault=Calls(added, (ones(4), ones(4)), (ones(4),) * 2),
        repaired=Calls(added, (ones(4), ones(4)), (ones(4), ones(4).clone())),
    ),
    "Ints": Case(
        *("int-changed", "n", "3|4", "torch.tensor(3)"),
        fault=Calls(plus, (ones(4), 3), (ones(4), 4), (ones(4), 5)),
        repaired=Calls(plus, *numbers),
    ),
    "LoopCount": Case(
        *("int-changed", "n", "2|3|4", "hoist that out"),
        fault=Calls(repeated, (ones(4), 2), (ones(4), 3), (ones(4), 4)),
        repaired=Calls(plus_one, *[ones(4)] * 9),
    ),
    "Floats": Case(
        *("float-changed", "p", "0.1|0.2", "dynamic=True"),
        fault=Calls(times, (ones(4), 0.1), (ones(4), 0.2), (ones(4), 0.3)),
        repaired=Calls(times, (ones(4), 0.1), (ones(4), 0.2), (ones(4), 0.3), dynamic=True),
    ),
    "BranchOnInt": Case(
        *("value-condition", "n", "7", "decide it outside"),
        fault=Calls(by_number, (ones(4), 2), (ones(4), 3), (ones(4), 7), dynamic=True),
        repaired=in_turn(
            Calls(lambda x, n: x - n, (ones(4), 2), (ones(4), 3), dynamic=True), Calls(plus, (ones(4), 7), dynamic=True)
        ),
    ),
    "Bools": Case(
        *("bool-changed", "flag", "True|False", "choose outside"),
        fault=Calls(by_flag, (ones(4), True), (ones(4), False)),
        repaired=in_turn(Calls(plus_one, ones(4)), Calls(doubled, ones(4))),
    ),
    "Strings": Case(
        *("string-changed", "mode", "'sum'|'mean'", "choose outside"),
        fault=Calls(by_mode, (ones(4), "sum"), (ones(4), "mean")),
        repaired=in_turn(Calls(total, ones(4)), Calls(lambda x: x.mean(), ones(4))),
    ),
    "Nones": Case(
        *("none-changed", "mask", "None|a tensor", "neutral tensor"),
        fault=Calls(masked, (ones(4), None), (ones(4), ones(4))),
        repaired=Calls(masked, (ones(4), ones(4)), (ones(4), ones(4))),
    ),
    "Types": Case(
        *("type-changed", "x", "a tensor|list", "one type"),
        fault=Calls(first, ones(4), [ones(4)]),
        repaired=Calls(first, [ones(4)], [ones(4)]),
    ),
    "FreshFunctions": Case(
        *("function-changed", "h", "<lambda>", "once, outside of the loop"),
        fault=fresh_functions,
        repaired=Calls(applied, (ones(4), halved), (ones(4), halved)),
        where=applied,
    ),
    "Enums": Case(
        *("object-changed", "color", "Color.BLUE", "only what the function needs of it"),
        fault=Calls(by_color, (ones(4), Color.RED), (ones(4), Color.BLUE)),
        repaired=Calls(times, *numbers),
    ),
    "FreshOptimizers": Case(
        *("object-freed", "optimizer", "", "make it once and keep it"),
        fault=lambda: two_steps(sgd),
        repaired=lambda: two_steps(functools.cache(sgd)),
        where=step,
    ),
    "ModuleAttribute": Case(
        *("attribute-changed", "self.scale", "1|2|3", "register_buffer"),
        fault=changed_attribute,
        repaired=changed_buffer,
        where=Scaled,
    ),
    "Instances": Case(
        *("instance-changed", "self.scale", "1|2|3", "the instances share one compiled function"),
        fault=in_turn(*(Calls(Scaled(scale), ones(4)) for scale in (1, 2, 3))),
        repaired=configured(
            in_turn(*(Calls(Scaled(scale), ones(4), dynamic=True) for scale in (2, 3, 4))),
            allow_unspec_int_on_nn_module=True,
        ),
        where=Scaled,
    ),
    "InstancesOfOtherLength": Case(
        *("instance-changed", "self.parts", "1|2", "the instances share one compiled function"),
        fault=in_turn(Calls(Wide(1), ones(4)), Calls(Wide(2), ones(4))),
        repaired=in_turn(Calls(Wide(2), ones(4)), Calls(Wide(2), ones(4))),
        where=Wide,
    ),
    "FunctionsBehindOneDecorator": Case(
        *("shared-code", "", f"{MODULE}doubled|{MODULE}halved", "compile a function of its own for each"),
        fault=in_turn(Calls(behind_doubled, ones(4)), Calls(behind_halved, ones(4))),
        repaired=in_turn(Calls(lambda x: behind_doubled(x), ones(4)), Calls(lambda x: behind_halved(x), ones(4))),
    ),
    "ModelsThatShareAForward": Case(
        *("shared-code", "", f"{MODULE}Shared|{MODULE}Sharing", "isolate_recompiles=True"),
        fault=in_turn(Calls(Shared(), ones(4)), Calls(Sharing(), (ones(4), ones(4)))),
        repaired=in_turn(
            Calls(Shared(), ones(4), isolate_recompiles=True),
            Calls(Sharing(), (ones(4), ones(4)), isolate_recompiles=True),
        ),
    ),
    "TrainingMode": Case(
        *("training-mode-changed", "self.drop.training", "True|False", "eval() once"),
        fault=trained_and_evaluated,
        repaired=Calls(Dropping().eval(), ones(4), ones(4)),
        where=Dropping,
    ),
    "Globals": Case(
        *("global-changed", "SCALE", "1|2|3", "pass SCALE as an argument"),
        fault=changed_global,
        repaired=Calls(times, *numbers),
        where=scaled_by_global,
    ),
    "Closures": Case(
        *("closure-changed", "scale", "1|2", "make the function once"),
        fault=in_turn(Calls(scaler(1), ones(4)), Calls(scaler(2), ones(4))),
        repaired=Calls(scaler(2), ones(4), ones(4)),
        where=scaler,
    ),
    "Lengths": Case(
        *("length-changed", "xs", "1|2", "torch.stack"),
        fault=Calls(summed, [ones(4)], [ones(4), ones(4)]),
        repaired=Calls(lambda xs: xs.sum(0), torch.stack([ones(4)] * 2), torch.stack([ones(4)] * 3), dynamic=True),
    ),
    "Keys": Case(
        *("keys-changed", "batch", "'a'|'b'", "same keys, in the same order"),
        fault=Calls(of_batch, {"a": ones(4)}, {"b": ones(4)}),
        repaired=Calls(of_batch, {"a": ones(4), "b": ones(4)}, {"a": ones(4), "b": torch.zeros(4)}),
    ),
    "GradMode": Case(
        *("grad-mode-changed", "", "", "no_grad"),
        fault=within(plus_one, nullcontext, torch.no_grad),
        repaired=within(plus_one, torch.no_grad, torch.no_grad),
    ),
    "Autocast": Case(
        *("autocast-changed", "", "", "autocast"),
        fault=within(plus_one, nullcontext, autocast),
        repaired=within(plus_one, autocast, autocast),
    ),
    "DefaultDtype": Case(
        *("global-state-changed", "", "", "before the first call"),
        fault=within(plus_one, nullcontext, float64),
        repaired=within(plus_one, float64, float64),
    ),
    "DeviceMode": Case(
        *("function-mode-changed", "", "", "same modes"),
        fault=within(lambda x: x + torch.ones(4), nullcontext, on_cpu),
        repaired=within(lambda x: x + torch.ones(4), on_cpu, on_cpu),
    ),
    "FreshBackends": Case(
        *("backend-changed", "", "", "make the backend once"),
        fault=in_turn(*(Calls(plus_one, ones(4), backend=backend()) for _ in range(2))),
        repaired=in_turn(*(Calls(plus_one, ones(4), backend=one_backend) for _ in range(2))),
    ),
}
