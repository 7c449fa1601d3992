"""What a function of torch is to the dump: its name, and whether a call of it is worth a record.

The rule, for functions as a TorchFunctionMode sees them:

- attributes are no calls, but for those that compute a tensor of other values or another order (`ATTRIBUTES`);
- questions about a tensor that do not read its values (`QUESTIONS`, `is_*`, `has_*`) are none;
- what torch calls for itself, and has no public name, is none;
- `backward` and `autograd.grad` are no calls: the calls that they make backwards are;
- every other function is, if it returns a tensor, changes one, or reads values (`READS`).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from typing import Any

import torch

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


class FunctionInfo:
    """What is known of one function.

    Attributes:
        api: `torch.nn.functional.linear`, `torch.Tensor.add_`, `torch.ops.aten.sin`.
        label: the same without `torch.`, as labels of calls begin.
        names: what a user may call it.
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
        self.names = names_of(api)
        name = name or api.rpartition(".")[2]
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


def names_of(api: str) -> tuple[str, ...]:
    """What a user may call an API: in full, without `torch.`, and its last part."""
    return (api, api.removeprefix("torch."), api.rpartition(".")[2])
