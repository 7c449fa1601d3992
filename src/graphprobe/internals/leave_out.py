"""Which settings leave a part of the compiler out, by stage, and what makes an operation run as torch's own kernel."""

from __future__ import annotations

import importlib
import inspect
import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from graphprobe.internals.compiler_settings import changed_values
from graphprobe.internals.operators.operators import Overload

DYNAMO, FUNCTORCH, INDUCTOR = "torch._dynamo.config", "torch._functorch.config", "torch._inductor.config"

DISABLED = "disabled_passes"
"""Inductor's setting: the names of passes, in one text."""

DECOMPOSITION, LOWERING = "torch._inductor.decomposition", "torch._inductor.lowering"


class LeftOut(NamedTuple):
    """A setting with the value that leaves something out.

    Attributes:
        module: whose setting, such as `torch._inductor.config`.
        name: dotted inside of that.
    """

    module: str
    name: str
    value: Any

    @property
    def statement(self) -> str:
        """What sets it; of the passes that are left out, what adds one, beside those of another statement."""
        if self.name == DISABLED and self.value:
            return f"{self.module}.{self.name} += {',' + self.value.rpartition(',')[2]!r}"
        return f"{self.module}.{self.name} = {self.value!r}"

    @property
    def now(self) -> Any:
        """Its value in this process; imports the module.

        Raises:
            AttributeError: this torch has no such setting.
        """
        return operator.attrgetter(self.name)(importlib.import_module(self.module))


def _rows(module: str, values: dict[str, Any]) -> tuple[LeftOut, ...]:
    return tuple(LeftOut(module, name, value) for name, value in values.items())


_FOLDING = _rows(INDUCTOR, {"joint_graph_constant_folding": False})
_PATTERNS = _rows(INDUCTOR, {"pattern_matcher": False})
_OTHER_PASSES = _rows(INDUCTOR, {"use_joint_graph_passes": False, "use_pre_grad_passes": False})
_PASSES = (*_FOLDING, *_OTHER_PASSES, *_PATTERNS)
_VECTORS = _rows(INDUCTOR, {"cpp.simdlen": 0})
_LOOPS = _rows(
    INDUCTOR,
    {
        "pick_loop_orders": False,
        "constant_and_index_propagation": False,
        "loop_ordering_after_fusion": False,
        "max_pointwise_cat_inputs": 0,
        "split_reductions": False,
        "unroll_reductions_threshold": 1,
        "comprehensive_padding": False,
        "layout_optimization": False,
        "epilogue_fusion": False,
    },
)
_DONATED = _rows(FUNCTORCH, {"donated_buffer": False})
_MEMORY = (*_DONATED, *_rows(INDUCTOR, {"inplace_buffers": False, "allow_buffer_reuse": False}))
_SAVED = _DONATED + _rows(
    FUNCTORCH,
    {
        "recompute_views": True,
        "treat_parameters_as_free_to_save": False,
        "guess_tangent_strides_as_outputs": False,
        "view_replay_for_aliased_outputs": False,
        "backward_pass_autocast": "off",
        "cse": False,
        "aggressive_recomputation": True,
    },
)
_NUMPY = _rows(DYNAMO, {"trace_numpy": False})
_GUARDS = _rows(
    DYNAMO,
    {
        "skip_nnmodule_hook_guards": False,
        "guard_nn_modules_using_dict_tags": False,
        "skip_tensor_guards_with_matching_dict_tags": False,
        "skip_no_tensor_aliasing_guards_on_parameters": False,
        "automatic_dynamic_shapes": False,
        "specialize_float": True,
    },
)

_GRAPHS_KEPT = _rows(FUNCTORCH, {"enable_autograd_cache": False})

LEAVE_OUT: dict[str, tuple[tuple[LeftOut, ...], ...]] = {
    "dynamo": (_NUMPY, _GUARDS),
    "aot": (_SAVED,),
    "pre_grad": (_PATTERNS, _PASSES),
    "joint": (_FOLDING, _PATTERNS, _PASSES),
    "post_grad": (_PATTERNS, _PASSES),
    "memory": (_MEMORY,),
    "entries": (_GRAPHS_KEPT, (*_GRAPHS_KEPT, *_rows(INDUCTOR, {"fx_graph_cache": False}))),
    "lowering": (_VECTORS, _MEMORY, _LOOPS),
    "codegen": (_VECTORS, _LOOPS),
    "runtime": (_SAVED, _VECTORS, _MEMORY, _LOOPS),
    "unknown": (_SAVED, _PASSES, _VECTORS, _MEMORY, _LOOPS),
}
"""By stage, what to try in this order: groups of settings, each group together. A decomposition has no setting.
`memory`: what lets a kernel write where something else was; at code generation tried before fallbacks. `entries`: what
finds entries in torch's caches."""


def settings_for(stage: str) -> Iterator[tuple[LeftOut, ...]]:
    """The groups of a stage, without settings that this torch lacks, and those that have the value already."""
    for group in LEAVE_OUT.get(stage, ()):
        if there := tuple(setting for setting in group if _would_change(setting)):
            yield there


def _would_change(setting: LeftOut) -> bool:
    try:
        return bool(setting.now != setting.value)
    except (AttributeError, ImportError):
        return False


def without_pass(name: str) -> LeftOut | None:
    """The setting that leaves a graph pass out by its name, beside those that are left out already; None without it."""
    setting = LeftOut(INDUCTOR, DISABLED, name)
    if not name.isidentifier() or not _would_change(setting):
        return None
    return setting._replace(value=",".join(filter(None, (setting.now, name))))


def own_switches() -> list[LeftOut]:
    """What the program has switched on in Inductor, switched off again."""
    found = ((name, value) for name, value in changed_values(INDUCTOR) if value is True and "cache" not in name)
    return [LeftOut(INDUCTOR, name, False) for name, _ in found]


def known_op(name: str) -> Overload | None:
    """The operation of such a name, `aten.acosh.default`, if Inductor decomposes or lowers it; else None."""
    namespace, _, rest = name.partition(".")
    try:
        op = operator.attrgetter(rest)(getattr(torch.ops, namespace)) if rest else None
    except (AttributeError, RuntimeError):
        return None
    tables = [(DECOMPOSITION, "decompositions"), (LOWERING, "lowerings")]
    known = (getattr(importlib.import_module(module), table, {}) for module, table in tables)
    return op if isinstance(op, Overload) and any(op in table for table in known) else None


def fallback_text(ops: Sequence[Overload]) -> str:
    """Statements that make operations run as torch's own kernels inside of compiled graphs; empty where torch cannot.

    Graph caches do not ask for that, hence the tag. The statements have to run before the first compilation.
    """
    make = getattr(importlib.import_module(LOWERING), "make_fallback", None)
    if make is None or "override_decomp" not in inspect.signature(make).parameters:
        return ""
    names = ", ".join(f"torch.ops.{op}" for op in ops)
    decompositions = importlib.import_module(DECOMPOSITION)
    tables = [name for name in ("decompositions", "extra_random_decomps") if hasattr(decompositions, name)]
    lines = [f"import {DECOMPOSITION}, {LOWERING}, torch.compiler.config", f"for op in [{names}]:"]
    lines += [f"    {DECOMPOSITION}.{table}.pop(op, None)" for table in tables]
    lines.append(f"    {LOWERING}.make_fallback(op, warn=False, override_decomp=True)")
    if hasattr(decompositions, "fast_random_decomps"):  # a cached copy of the tables
        lines.append(f"{DECOMPOSITION}.fast_random_decomps.cache_clear()")
    tag = f"torch's own {', '.join(str(op) for op in ops)}"
    lines.append(f'torch.compiler.config.cache_key_tag += "{tag}"')
    return "\n".join(lines)
