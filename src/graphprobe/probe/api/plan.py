"""What an API dump is to hold, checked before anything runs: what a call is, and which calls are kept.

The rule, for functions as a TorchFunctionMode sees them:

- attributes are no calls, but for those that compute a tensor of other values or another order (`ATTRIBUTES`);
- questions about a tensor that do not read its values (`QUESTIONS`, `is_*`, `has_*`) are none;
- what torch calls for itself, and has no public name, is none;
- `backward` and `autograd.grad` are no calls: the calls that they make backwards are;
- every other function is, if it returns a tensor, changes one, or reads values (`READS`).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch

from graphprobe.dump_plan.options import API_OPTIONS, FILE_SECTION
from graphprobe.errors import SettingError, UsageError
from graphprobe.select import StepSelection, steps_from_text
from graphprobe.settings import Option
from graphprobe.settings.option import only_given, section_from_file
from graphprobe.store.calls import DumpData, DumpLevel, DumpMode

OptimizerRecords = Literal["step", "state", "calls", "off"]
StepAt = Literal["optimizer", "hand"]

ATTRIBUTES = frozenset({"T", "mT", "H", "mH", "real", "imag"})
QUESTIONS = frozenset(
    """dim ndimension size stride sym_size sym_stride numel nelement element_size storage_offset data_ptr storage
    untyped_storage storage_type get_device result_type promote_types can_cast __len__ __hash__ __repr__
    __format__ __dir__ __deepcopy__ __reduce_ex__ __setstate__ requires_grad_ retain_grad
    register_hook register_post_accumulate_grad_hook const_data_ptr dim_order layout names refine_names
    has_names __torch_dispatch__ __cuda_array_interface__ __dlpack_device__ sparse_dim dense_dim q_scale q_zero_point
    q_per_channel_axis qscheme share_memory_ module_load record_stream
    use_deterministic_algorithms  broadcast_shapes
    """.split()
)
READS = frozenset(
    "item tolist __bool__ __float__ __int__ __index__ __complex__ equal allclose is_nonzero numpy".split()
)
RUNS = frozenset({"backward", "grad"})
"""They run the graph: what runs meanwhile is watched, see `internals.api_calls.BackwardRuns`."""
LEAKS = frozenset({"data_ptr", "numpy", "storage", "untyped_storage", "__array__", "__dlpack__", "to_dlpack", "set_"})
"""Through these a program gets at memory, and can write to it where no version counter sees it."""

DOUBTFUL = frozenset(
    "batch_norm instance_norm native_batch_norm cudnn_batch_norm miopen_batch_norm "
    "_amp_foreach_non_finite_check_and_unscale_".split()
)
"""They write to running statistics, or to gradients, and do not count that as a version."""

CHANGING = frozenset("__setitem__ __iadd__ __isub__ __imul__ __idiv__ __itruediv__ __ifloordiv__ __imod__".split())
COMPUTING = ("_foreach_", "_fused_", "_amp_")
"""Functions without a public name that compute all the same, as `torch.nn.utils.clip_grad_norm_` and optimizers use."""
_HIDDEN_NAMESPACES = frozenset({"profiler", "prim", "prims_internal"})

_METHOD_WRAPPER = type("".__str__)
_known: dict[Any, FunctionInfo] = {}


class ApiPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `graphprobe.dump`, checked; see there.

    Attributes:
        steps: None: all.
        apis: names and globs; empty: all.
        scope: labels of calls.
    """

    path: str
    data: DumpData = "stats"
    level: DumpLevel = "api"
    mode: DumpMode = "all"
    scope: tuple[str, ...] = ()
    steps: StepSelection | None = None
    apis: tuple[str, ...] = ()
    sample: int | None = None
    stack: bool = False
    optimizer: OptimizerRecords = "step"
    step_at: StepAt = "optimizer"
    budget_bytes: int | None = None

    def as_document(self) -> dict[str, Any]:
        """JSON for the manifest."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document | {"steps": None if self.steps is None else str(self.steps)}


def plan_from_arguments(arguments: Mapping[str, Any]) -> ApiPlan:
    """The plan that the arguments of `graphprobe.dump` describe; None stands for the default.

    Raises:
        UsageError: an argument does not exist or has a value that it cannot take, or two exclude each other.
    """
    given = only_given(API_OPTIONS, arguments, "argument", "option of a dump")
    if "path" not in given:
        raise UsageError("path is missing: a dump needs a folder to be written to")
    values = {row.name: _taken(row, given[row.name]) for row in API_OPTIONS if row.name in given}
    values |= {name: tuple(one.strip() for one in values[name]) for name in ("scope", "apis") if name in values}
    if "steps" in values:
        values["steps"] = steps_from_text(values["steps"])
    plan = ApiPlan(**{**values, "stack": values.get("stack", False) or values.get("mode") == "stack"})
    _check_together(plan, given)
    return plan


def arguments_from_file(path: str | Path) -> dict[str, Any]:
    """The arguments in a JSON file `{"api_dump": {...}}`, unchecked but for their names.

    Raises:
        UsageError: the file cannot be read, or is not such a document.
    """
    return section_from_file(path, FILE_SECTION, ApiPlan.__struct_fields__, called="config", alone=False)


def _taken(row: Option, value: Any) -> Any:
    if row.type == "steps" and isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    kept = row.converted(value)
    if kept is None:
        raise SettingError(f"{row.name}={value!r}: expected {row.accepted()}")
    return kept


def _check_together(plan: ApiPlan, given: Mapping[str, Any]) -> None:
    if plan.mode == "all" and plan.scope:
        raise UsageError(
            f"scope={list(plan.scope)!r} with mode='all', which takes every call",
            hint="mode='list' takes just these calls, mode='range' those from the first to the second",
        )
    if plan.mode == "list" and not plan.scope:
        raise UsageError("mode='list' needs scope: the labels of the calls", hint="scope=['Tensor.add.3', 'relu.0']")
    if plan.mode == "range" and len(plan.scope) != 2:
        raise UsageError(
            f"mode='range' needs two labels in scope, the first call and the last; there are {len(plan.scope)}"
        )
    if plan.mode == "stack" and len(plan.scope) not in (0, 2):
        raise UsageError(
            f"mode='stack' takes the first and the last call in scope, or nothing; there are {len(plan.scope)}"
        )
    if plan.sample is not None and plan.data != "tensor":
        raise UsageError(f"sample={plan.sample} with data={plan.data!r}, which keeps no values", hint="data='tensor'")
    if plan.mode == "stack" and given.get("data") == "tensor":
        raise UsageError("data='tensor' with mode='stack', which keeps no values", hint="mode='range' with stack=True")


class CallSelection:
    """Decides for each call, in the order in which they begin.

    Labels are written with or without their direction; a backward belongs to its forward.
    """

    def __init__(self, plan: ApiPlan) -> None:
        self._apis = plan.apis
        self._list = plan.scope if plan.mode == "list" else ()
        self._range = plan.scope if plan.mode in ("range", "stack") and plan.scope else ()
        self._by_api: dict[str, bool] = {}
        self._open = not self._range
        self._met: set[str] = set()
        self.everything = not (self._apis or self._list or self._range)

    def wants(self, label: str, api: str, names: tuple[str, ...]) -> bool:
        """Whether a call is kept; `label` lacks its direction, `names` are all that the API may be called."""
        if self.everything:
            return True
        wanted = self._by_api.get(api)
        if wanted is None:
            wanted = self._by_api[api] = not self._apis or matches(self._apis, names)
        if self._range and not self._in_range(label):
            return False
        if self._list:
            found = [name for name in self._list if matches((bare(name),), (label,)) or matches((name,), names)]
            self._met.update(found)
            return wanted and bool(found)
        return wanted

    def unmet(self) -> list[str]:
        """Entries of the scope that no call had, in words."""
        if self._list:
            return [f"no call was {name}" for name in self._list if name not in self._met]
        ends = zip(("first", "last"), self._range, strict=False)
        return [f"the {end} call of the range, {name}, never came" for end, name in ends if name not in self._met]

    def _in_range(self, label: str) -> bool:
        first, last = self._range
        if not self._open and first not in self._met and matches((bare(first),), (label,)):
            self._met.add(first)
            self._open = True
        inside = self._open
        if inside and matches((bare(last),), (label,)):
            self._met.add(last)
            self._open = False
        return inside


def bare(label: str) -> str:
    """A label without its direction."""
    return label.removesuffix(".forward").removesuffix(".backward")


class FunctionInfo:
    """What is known of one function.

    Attributes:
        api: `torch.nn.functional.linear`, `torch.Tensor.add_`, `torch.ops.aten.sin`.
        label: the same without `torch.`, as labels of calls begin.
        names: what a user may call it: in full, without `torch.`, and its last part.
        skip: it is no call.
        reads: it returns something else than a tensor, and is a call all the same.
        leaks: it hands out the memory of its first argument.
        doubtful: it may change arguments where no version counter sees it.
        changes: it says by its name that it changes its first argument.
    """

    __slots__ = ("api", "changes", "doubtful", "label", "leaks", "names", "reads", "skip")

    def __init__(self, api: str, *, skip: bool = False, name: str = "") -> None:
        self.api = api
        self.label = api.removeprefix("torch.")
        last = api.rpartition(".")[2]
        self.names = (api, self.label, last)
        name = name or last
        self.skip = skip or name in RUNS
        self.reads = name in READS
        self.leaks = name in LEAKS
        # An operator of somebody else may not say what it writes to.
        self.doubtful = name in DOUBTFUL or (api.startswith("torch.ops.") and not api.startswith("torch.ops.aten."))
        self.changes = name in CHANGING or (name.endswith("_") and not name.endswith("__"))


def info_of(func: Any) -> FunctionInfo:
    """What is known of `func`; found out once."""
    try:
        found = _known.get(func)
    except TypeError:  # cannot be hashed
        return _learn(func)
    if found is None:
        found = _known[func] = _learn(func)
    return found


def _learn(func: Any) -> FunctionInfo:
    name = getattr(func, "__name__", type(func).__name__)
    if isinstance(func, _METHOD_WRAPPER):
        return _attribute(func, name)
    try:
        resolved = torch.overrides.resolve_name(func)
    except Exception:  # a callable that torch has no name for
        resolved = None
    if resolved is None:
        module = getattr(func, "__module__", None) or ""
        if module.startswith("torch") and name.startswith(COMPUTING):
            return FunctionInfo(f"torch.{name}", name=name)
        private = name.startswith("_") or any(part.startswith("_") for part in module.split("."))
        return FunctionInfo(f"{module}.{name}".lstrip("."), skip=private, name=name)
    if not resolved.startswith("torch."):
        namespace = resolved.partition(".")[0]
        return FunctionInfo(f"torch.ops.{resolved}", skip=namespace in _HIDDEN_NAMESPACES, name=name)
    owner, _, last = resolved.rpartition(".")
    if last != name and owner == "torch" and getattr(torch, name, None) is func:
        resolved, last = f"torch.{name}", name  # of two names, such as mm and spmm, its own
    return FunctionInfo(resolved, skip=last in QUESTIONS or (last.startswith(("is_", "has_")) and last not in READS))


def _attribute(func: Any, name: str) -> FunctionInfo:
    """`Tensor.T.__get__`: the descriptor is what the wrapper is bound to."""
    attribute = getattr(getattr(func, "__self__", None), "__name__", "")
    info = FunctionInfo(
        f"torch.Tensor.{attribute}", skip=name != "__get__" or attribute not in ATTRIBUTES, name=attribute
    )
    info.leaks = attribute == "data"  # its version counter is another one
    return info


def matches(patterns: Iterable[str], names: Iterable[str]) -> bool:
    """Whether one of the patterns, names or globs with `*`, `?` and `[…]`, is or matches one of the names."""
    names = tuple(names)
    return any(pattern in names or any(fnmatch.fnmatchcase(name, pattern) for name in names) for pattern in patterns)
