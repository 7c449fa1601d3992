"""The private names of torch that the op dump stands on, and what is lost without each: for `graphprobe doctor`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from graphprobe.errors import UnsupportedTorchError
from graphprobe.internals import eager_ops, lowering, post_grad_tap
from graphprobe.internals.frame_failures import CONVERT_FRAME
from graphprobe.internals.frame_names import COMPILE as COMPILED_FRAME
from graphprobe.internals.require import require
from graphprobe.internals.stages import COMPILE_FX

STORAGE_NAMES = ("_weak_ref", "_free_weak_ref", "_expired", "_new_with_weak_ptr")


class Need(msgspec.Struct, frozen=True):
    """What one capability needs: names as (module, dotted name in it); `lost` says what there is not without them."""

    capability: str
    names: tuple[tuple[str, str], ...]
    lost: str


NEEDS: tuple[Need, ...] = (
    Need(
        "dump",
        (
            ("torch", "_TorchCompileInductorWrapper"),
            (COMPILE_FX, "compile_fx"),
            (COMPILE_FX, "compile_fx_inner"),
            ("torch._guards", "CompileContext.current_compile_id"),
            COMPILED_FRAME,
        ),
        "no dump of what Inductor compiles, or models and recompilations without their names",
    ),
    Need(
        "dump_kernel",
        (
            lowering.REPORT,
            lowering.COMPILE,
            ("torch._inductor.virtualized", "V"),
            ("torch._inductor.ir", "Buffer.get_origin_node"),
        ),
        "no engine 'kernel': use engine = 'interpreter'",
    ),
    Need(
        "dump_stats",
        (("torch._C", "_get_tensor_metadata"),),
        "statistics give up the interpreter's lock at every value, so other threads hold up the program longer",
    ),
    Need("dump_instrument", ((COMPILE_FX, post_grad_tap.NAME),), "no engine 'instrument'"),
    Need(
        "dump_interpreter",
        (
            (COMPILE_FX, "fake_tensor_prop"),
            (COMPILE_FX, "view_to_reshape"),
            (COMPILE_FX, "_recursive_post_grad_passes"),
            ("torch._inductor.virtualized", "V.set_fake_mode"),
        ),
        "no engine 'interpreter' for Inductor's graphs after its passes: use the backend 'aot_eager'",
    ),
    Need(
        "dump_steps",
        (("torch", "UntypedStorage._cdata"), ("torch.multiprocessing.reductions", "StorageWeakRef")),
        "a backward counts to the latest forward call that has none yet, whichever it belongs to",
    ),
    Need(
        "dump_watch",
        tuple(("torch", f"UntypedStorage.{name}") for name in STORAGE_NAMES),
        "the watch mode does not see outputs that are overwritten after their call",
    ),
    Need(
        "dump_single_ops",
        (
            ("torch.utils._python_dispatch", f"TorchDispatchMode.{eager_ops.NEEDED}"),
            *(("torch._C", name) for name in ("_current_autograd_node", "_len_torch_dispatch_stack")),
            *(("torch._C", name) for name in ("_get_dispatch_stack_at", "_get_dispatch_mode", "_TorchDispatchModeKey")),
            ("torch._guards", "CompileContext.try_get"),
            ("torch._guards", "TracingContext.try_get"),
        ),
        "dump_op_switch: no ops outside compiled graphs",
    ),
    Need(
        "mixing",
        (
            ("torch._inductor.ir", "MutationLayoutSHOULDREMOVE"),
            ("torch._inductor.ir", "NonOwningLayout"),
            ("torch._inductor.ir", "FlexibleLayout.allow_indexing"),
        ),
        "no single launch can be replaced, so findings do not name their kernel",
    ),
    Need(
        "only_function",
        ((CONVERT_FRAME, "ConvertFrameAssert.__call__"), ("torch._dynamo.types", "ConvertFrameReturn")),
        "--only-function leaves nothing out",
    ),
    Need(
        "component_logs",
        tuple(
            ("torch._logging._internal", name)
            for name in ("log_registry", "configure_artifact_log", "LogState.is_artifact_enabled")
        ),
        "--logs: artifacts of modules that are imported within the first compile, or recompiles, are not kept",
    ),
    Need(
        "frame_records",
        (
            (CONVERT_FRAME, "_compile"),
            (CONVERT_FRAME, "unimplemented"),
            ("torch._dynamo.pgo", "get_code_state"),
            ("torch._dynamo.pgo", "CodeId.make"),
        ),
        "no records of frames that fail to trace, or replays without sizes that had become symbols",
    ),
)


def probe(needs: Sequence[Need] = NEEDS) -> dict[str, tuple[str, str | None]]:
    """By capability, `ok` or `missing: <module>:<name>`, and what is lost; imports torch's modules."""
    return {need.capability: _status(need) for need in needs}


def _status(need: Need) -> tuple[str, str | None]:
    for module, name in need.names:
        try:
            require(module, name, purpose=need.capability)
        except UnsupportedTorchError:
            return f"missing: {module}:{name}", need.lost
    return "ok", None
