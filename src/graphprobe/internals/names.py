"""The private names of torch that graphprobe uses: each once, with what is lost without it and which torch has it.

Support for another torch begins here. `scripts/torch_names.py --against` holds the table against the sources of a
torch, `graphprobe doctor` against the torch that is installed, and docs/torch_names.md shows it. A test keeps it
complete: each path of torch with a private part that graphprobe uses stands here, and what stands here is used.

A private attribute of a value has no such path, for instance `passname` of the observer of a pass. Those are not here.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from graphprobe.errors import UnsupportedTorchError

_MISSING = object()

SUPPORTED = ("2.11", "2.15")
"""The oldest and the newest torch that graphprobe is written for; pyproject.toml has them as the range it installs."""

SUPPORTED_HINT = f"graphprobe supports torch {SUPPORTED[0]} to {SUPPORTED[1]}"

RUN_LOSES = {
    "dynamo_graph": "nothing can be collected: no compile is seen",
    "aot_graphs": "no joint, forward or backward graphs, and none of their passes",
    "passes": "no graph after each pass",
    "silent_passes": "view_to_reshape shows as unobserved changes",
    "pre_grad_passes": "passes before AOTAutograd are not told apart",
    "joint_passes": "joint-graph passes are not told apart",
    "post_grad_passes": "passes after AOTAutograd are not told apart",
    "nested_graphs": "before AOTAutograd, nested graphs are not told apart from the graph that they lie in",
    "lowering": "no scheduler IR and no output_code.py",
    "inductor_result": "no captured_ops.json, and no inputs for output_code.py",
    "metrics": "no timings and no recompile reason in compile.json",
    "guards": "no guards in compile.json",
    "recompiles": "no recompiles.jsonl: which guards failed is not known",
    "steps": "`graphprobe logs` knows fewer of the compiler's steps, or none",
    "graph_breaks": "graph breaks are not listed",
    "uncompiled": "functions that Dynamo leaves uncompiled are not listed",
    "debug_dir": "torch's own debug files go to a folder of their own",
}
"""What is missing from a run without each of its taps."""

LOSES = {
    **RUN_LOSES,
    "api_dump": "graphprobe run --dump records no calls",
    "api_regions": "graphprobe run --dump also records calls inside compiled code, and changes what is compiled",
    "backends": "graphprobe's own backends that go through AOTAutograd compile nothing, or not as torch's do",
    "beside_compiles": "nothing can be computed while a program compiles: no statistics, no dumps, no diagnosis",
    "caches": "graphs that torch has in a cache are not collected",
    "checking_backends": "no backend 'eager_debug', and no comparison with fake kernels",
    "child_processes": "a diagnosis cannot compile in child processes",
    "compile_calls": "diagnose, watch and run --dump-graph do not see what a program compiles, or with which backend",
    "compiled_before": "functions that were compiled before collecting began are not named",
    "component_logs": "--logs: artifacts of modules that the first compile imports, or recompiles, are not kept",
    "containers": "tensors in nested lists, tuples and dicts are not found",
    "cut_off_libraries": "diagnose does not find libraries in torch's cache that are cut off",
    "decompositions": "a fault cannot be laid on the decomposition of an operator",
    "diagnose_caches": "the program runs without torch's graph caches, so that faults of what lies in one are not seen",
    "diagnose_excess_precision": "narrow values that a kernel keeps wider are a difference without a cause",
    "diagnose_numpy": "functions of numpy's that Dynamo gets wrong are not named",
    "diagnose_optimizers": "a compiled step of an optimizer may be called wrong, for its count of steps has float32",
    "diagnose_own_backends": "a backend that the program made with aot_autograd, or registered, is not in the repro",
    "diagnose_passes": "a fault is not laid on a pass, or on a pattern",
    "diagnose_ranks": "a program of several ranks cannot be diagnosed",
    "diagnose_settings": "mode and options of torch.compile are not kept, nor a run's settings of the compilers",
    "diagnose_stages": "a fault is found, and the stage and the operation that are to blame are not",
    "dump": "no dump of what Inductor compiles, or models and recompilations without their names",
    "dump_interpreter": "no engine 'interpreter' for Inductor's graphs after its passes: use the backend 'aot_eager'",
    "dump_kernel": "no engine 'kernel': use engine = 'interpreter'",
    "dump_single_ops": "dump_op_switch: no ops outside compiled graphs",
    "dump_stats": "statistics give up the interpreter's lock at every value, so that other threads hold up the program",
    "dump_steps": "a backward counts to the latest forward call that has none yet, whichever it belongs to",
    "dump_watch": "the watch mode does not see outputs that are overwritten after their call",
    "explain": "graphprobe explain does not count graphs, and says nothing of guards and times",
    "frame_records": "no records of frames that fail to trace, or replays without sizes that had become symbols",
    "function_names": "compiled functions go by the name of their innermost decorator, or by none",
    "ir_evaluation": "a wrong lowering is not told from wrong generated code",
    "mixing": "no single launch can be replaced, so findings do not name their kernel",
    "mode_names": "the mode of torch.compile is not named",
    "only_function": "--only-function leaves nothing out, or calls a function that it leaves out an error of fullgraph",
    "operators": "operators are not told from other functions: no dump, no diagnosis",
    "planted_fault": "graphprobe demo has no fault to find",
    "profile": "graphprobe profile sees no phases",
    "profile_details": "less of the compile time has a name, or nothing is known of the cache of C++ kernels",
    "profile_facts": "profiles do not say what the caches had, or which function was compiled",
    "profile_passes": "passes that torch does not time are missing from profiles",
    "recompile_reason": "compile.json does not say why a function was compiled anew",
    "registrations": "operators of the program are not held against their fake kernels and schemas",
    "reduce": "graphprobe reduce does not stand where torch's minifier would, or its children cannot compile",
    "scheduler_ir": "the scheduler's IR is not read: no launches in a run, no engine 'kernel'",
    "written_programs": "programs in a run that call these operators stop with an error",
    "ways": "what is exported, traced or packaged without torch.compile is not seen, or not all of it",
    "workarounds": "diagnose tries fewer changes with which the program may be right, or none",
    "warm_children": "each child process of a diagnosis takes seconds longer",
}
"""By capability, what is lost without a name that it needs."""

Use = Literal["patched", "called", "read", "imported"]
PATCHED: Use = "patched"
CALLED: Use = "called"
READ: Use = "read"
IMPORTED: Use = "imported"

ONLY_NESTED = "V.graph.parent"
"""What only a nested graph has."""

_OUTPUT_GRAPH, _COMPILE_FX = "torch._dynamo.output_graph", "torch._inductor.compile_fx"
_OBSERVER = ("torch.fx.passes.graph_transform_observer", "GraphTransformObserver")

MISLEADING = (
    (
        "2.12",
        "2.13",
        "deterministic mode may switch itself off (pytorch/pytorch#198563): ask torch whether it is on after compiling",
    ),
    (
        "2.12",
        "",
        "a setting of torch._inductor.config, such as deterministic, holds only in the thread that set it, and not "
        "where a GPU's backward is compiled (pytorch/pytorch#186537); TORCHINDUCTOR_DETERMINISTIC=1 holds in all",
    ),
)
"""From which torch to which, and what is known; empty: no such limit."""


class Name(msgspec.Struct, frozen=True):
    """One private name of torch.

    Attributes:
        module: dotted module name.
        attribute: dotted path inside the module; empty for the module itself.
        use: `patched` by `internals.bus`, `called`, `read`, or `imported` only.
        needed_for: capabilities, each a key of `LOSES`.
        since, until: the first and the last supported torch that has the name, such as `2.12`; empty: no such limit.
    """

    module: str
    attribute: str
    use: Use
    needed_for: tuple[str, ...]
    since: str = ""
    until: str = ""

    @property
    def address(self) -> str:
        """As patches and `doctor` write it."""
        return f"{self.module}:{self.attribute}" if self.attribute else self.module

    @property
    def path(self) -> str:
        """As sources write it."""
        return f"{self.module}.{self.attribute}" if self.attribute else self.module

    @property
    def versions(self) -> str:
        """Which supported torch has it, in words."""
        if not self.since and not self.until:
            return "all"
        return f"{self.since or SUPPORTED[0]} to {self.until or SUPPORTED[1]}"

    @property
    def only_while_lowering(self) -> bool:
        """Whether it is there only while Inductor lowers a graph."""
        return self.attribute.startswith("V.graph")

    @property
    def lost(self) -> str:
        """What there is not without it."""
        return "; ".join(LOSES[capability] for capability in self.needed_for)

    def is_in(self, version: str) -> bool:
        """Whether torch of this version, such as `2.13.0+cpu`, is to have it."""
        here = _release(version)
        return (not self.since or _release(self.since) <= here) and (not self.until or here <= _release(self.until))

    def is_there(self) -> bool:
        """Whether the installed torch has it; imports the module."""
        try:
            found: object = importlib.import_module(self.module)
        except ImportError:
            return False
        for part in filter(None, self.attribute.split(".")):
            if isinstance(found, type) and part in ("__init__", "__call__"):  # every class gets one from object or type
                found = next((vars(one)[part] for one in found.__mro__[:-1] if part in vars(one)), _MISSING)
            else:
                found = getattr(found, part, _MISSING)
        return found is not _MISSING


def _release(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _n(use: Use, module: str, attributes: str, needed_for: str, *, since: str = "", until: str = "") -> list[Name]:
    """The names inside a module; of what is imported only, the modules inside a package."""
    pairs = [(f"{module}.{one}", "") if use == IMPORTED else (module, one) for one in attributes.split()]
    return [Name(*pair, use, tuple(needed_for.split()), since, until) for pair in pairs]


_TABLE = (
    _n(READ, "torch", "UntypedStorage._cdata", "dump_steps"),
    _n(CALLED, "torch", "UntypedStorage._expired UntypedStorage._free_weak_ref", "dump_watch"),
    _n(CALLED, "torch", "UntypedStorage._new_with_weak_ptr UntypedStorage._weak_ref", "dump_watch"),
    _n(CALLED, "torch", "_TorchCompileInductorWrapper", "dump backends diagnose_settings"),
    _n(CALLED, "torch", "_TorchCompileWrapper", "diagnose_settings"),
    _n(PATCHED, "torch", "compile", "compile_calls"),
    _n(CALLED, "torch._C", "DisableTorchFunction", "api_dump beside_compiles"),
    _n(CALLED, "torch._C", "DisableTorchFunctionSubclass", "recompiles"),
    _n(CALLED, "torch._C", "_dispatch_get_all_op_names", "registrations"),
    _n(READ, "torch._C", "_TorchDispatchModeKey.FAKE _TorchDispatchModeKey.FUNCTIONAL", "dump_single_ops"),
    _n(READ, "torch._C", "_functions.AccumulateGrad", "api_dump"),
    _n(READ, "torch._C", "_TorchDispatchModeKey.PROXY", "dump_single_ops"),
    _n(CALLED, "torch._C", "_current_autograd_node", "api_dump dump_single_ops"),
    _n(CALLED, "torch._C", "_current_graph_task_id _get_function_stack_at _len_torch_function_stack", "api_dump"),
    _n(CALLED, "torch._C", "_get_dispatch_mode _get_dispatch_stack_at _len_torch_dispatch_stack", "dump_single_ops"),
    _n(CALLED, "torch._C", "_get_tensor_metadata", "dump_stats"),
    _n(CALLED, "torch._C._autograd", "_get_sequence_nr", "api_dump dump_single_ops"),
    _n(CALLED, "torch._C._distributed_c10d", "FakeProcessGroup._create_internal", "diagnose_ranks"),
    _n(READ, "torch._C._distributed_c10d", "ProcessGroup.BackendType.CUSTOM", "diagnose_ranks"),
    _n(READ, "torch._C._dynamo.eval_frame", "_FrameAction.DEFAULT", "ways"),
    _n(READ, "torch._C._dynamo.eval_frame", "_FrameAction.SKIP", "api_dump compile_calls"),
    _n(CALLED, "torch._C._dynamo.eval_frame", "_FrameExecStrategy set_code_exec_strategy", "api_dump compile_calls"),
    _n(CALLED, "torch._C._dynamo.eval_frame", "set_fullgraph_compiled_frame_count", "only_function", since="2.12"),
    _n(CALLED, "torch._C._functorch", "get_unwrapped is_batchedtensor is_functorch_wrapped_tensor", "api_dump"),
    _n(CALLED, "torch._C._functorch", "maybe_get_bdim", "api_dump"),
    _n(READ, "torch._decomp", "decomposition_table", "decompositions"),
    _n(CALLED, "torch._dynamo", "graph_break", "diagnose_stages"),
    _n(CALLED, "torch._dynamo", "list_backends", "compile_calls"),
    _n(CALLED, "torch._dynamo", "maybe_mark_dynamic", "frame_records"),
    _n(PATCHED, "torch._dynamo.aot_compile", "AOTCompiledFunction.__call__", "compile_calls"),
    _n(READ, "torch._dynamo.backends.common", "AotAutograd", "diagnose_own_backends"),
    _n(CALLED, "torch._dynamo.backends.common", "aot_autograd", "backends"),
    _n(CALLED, "torch._dynamo.backends.debugging", "boxed_nop", "backends"),
    _n(IMPORTED, "torch._dynamo.backends", "inductor", "warm_children"),
    _n(READ, "torch._dynamo.backends.registry", "_COMPILER_FNS", "diagnose_own_backends"),
    _n(CALLED, "torch._dynamo.backends.registry", "get_default_backend", "compile_calls", since="2.13"),
    _n(CALLED, "torch._dynamo.backends.registry", "list_backends", "reduce"),
    _n(CALLED, "torch._dynamo.backends.registry", "lookup_backend", "backends compile_calls reduce"),
    _n(READ, "torch._dynamo.callback", "callback_handler", "child_processes"),
    _n(READ, "torch._dynamo.config", "_config", "frame_records diagnose_settings"),
    _n(CALLED, "torch._dynamo.config", "_is_default", "frame_records diagnose_settings"),
    _n(READ, "torch._dynamo.config", "accumulated_recompile_limit recompile_limit", "recompiles"),
    _n(READ, "torch._dynamo.config", "automatic_dynamic_shapes", "recompiles workarounds"),
    _n(READ, "torch._dynamo.config", "guard_nn_modules_using_dict_tags specialize_float trace_numpy", "workarounds"),
    _n(READ, "torch._dynamo.config", "skip_no_tensor_aliasing_guards_on_parameters", "workarounds"),
    _n(READ, "torch._dynamo.config", "skip_tensor_guards_with_matching_dict_tags", "workarounds"),
    _n(READ, "torch._dynamo.config", "replay_record_enabled", "frame_records"),
    _n(READ, "torch._dynamo.config", "repro_after repro_level", "reduce"),
    _n(READ, "torch._dynamo.config", "skip_nnmodule_hook_guards", "diagnose_stages workarounds"),
    _n(READ, "torch._dynamo.config", "suppress_errors", "frame_records graph_breaks"),
    _n(PATCHED, "torch._dynamo.convert_frame", "ConvertFrameAssert.__call__", "only_function"),
    _n(PATCHED, "torch._dynamo.convert_frame", "_compile", "dump frame_records function_names"),
    _n(PATCHED, "torch._dynamo.convert_frame", "compile_frame", "steps"),
    _n(READ, "torch._dynamo.convert_frame", "compile_lock", "child_processes"),
    _n(PATCHED, "torch._dynamo.convert_frame", "compute_cache_size exceeds_recompile_limit", "recompiles"),
    _n(PATCHED, "torch._dynamo.convert_frame", "get_and_maybe_log_recompilation_reasons", "recompiles"),
    _n(PATCHED, "torch._dynamo.convert_frame", "exception_handler", "graph_breaks"),
    _n(PATCHED, "torch._dynamo.convert_frame", "format_error_msg", "uncompiled"),
    _n(READ, "torch._dynamo.convert_frame", "input_codes input_codes.seen", "compiled_before"),
    _n(CALLED, "torch._dynamo.convert_frame", "original_forward_from_src", "reduce"),
    _n(PATCHED, "torch._dynamo.convert_frame", "unimplemented", "frame_records"),
    _n(PATCHED, "torch._dynamo.eval_frame", "OptimizeContext.__call__", "compile_calls"),
    _n(READ, "torch._dynamo.eval_frame", "OptimizedModule", "api_regions function_names"),
    _n(PATCHED, "torch._dynamo.eval_frame", "_callback_from_stance", "api_regions"),
    _n(CALLED, "torch._dynamo.eval_frame", "_debug_get_cache_entry_list", "compiled_before"),
    _n(READ, "torch._dynamo.exc", "RestartAnalysis", "dynamo_graph reduce"),
    _n(READ, "torch._dynamo.exc", "UncapturedHigherOrderOpError Unsupported UserError", "frame_records"),
    _n(PATCHED, "torch._dynamo.guards", "CheckFunctionManager.__init__", "guards steps"),
    _n(PATCHED, _OUTPUT_GRAPH, "OutputGraph.call_user_compiler", "compile_calls dynamo_graph steps explain"),
    _n(CALLED, "torch._dynamo.pgo", "CodeId.make get_code_state", "frame_records"),
    _n(READ, "torch._dynamo.pgo", "auto_dynamic", "frame_records"),
    _n(PATCHED, "torch._dynamo.repro.after_dynamo", "WrapBackendDebug.__call__", "reduce"),
    _n(PATCHED, "torch._dynamo.symbolic_convert", "InstructionTranslatorBase.log_graph_break", "graph_breaks"),
    _n(CALLED, "torch._dynamo.types", "ConvertFrameReturn", "only_function"),
    _n(PATCHED, "torch._dynamo.utils", "ChromiumEventLogger.log_event_end", "profile"),
    _n(PATCHED, "torch._dynamo.utils", "ChromiumEventLogger.log_event_start", "profile"),
    _n(PATCHED, "torch._dynamo.utils", "ChromiumEventLogger.log_instant_event", "profile_facts"),
    _n(PATCHED, "torch._dynamo.utils", "CompilationMetrics.create", "metrics profile_facts"),
    _n(PATCHED, "torch._dynamo.utils", "_get_debug_dir", "debug_dir"),
    _n(CALLED, "torch._dynamo.utils", "compile_times", "explain"),
    _n(READ, "torch._dynamo.utils", "counters", "explain"),
    _n(CALLED, "torch._dynamo.utils", "get_debug_dir", "debug_dir"),
    _n(CALLED, "torch._dynamo.utils", "get_metrics_context", "recompile_reason"),
    _n(CALLED, "torch._dynamo.utils", "numpy_attr_wrapper", "diagnose_numpy"),
    _n(READ, "torch._dynamo.utils", "numpy_method_wrapper numpy_operator_wrapper", "diagnose_numpy"),
    _n(READ, "torch._dynamo.utils", "numpy_to_tensor_wrapper", "diagnose_numpy"),
    _n(PATCHED, "torch._functorch._aot_autograd.autograd_cache", "autograd_cache_key", "caches profile_details"),
    _n(PATCHED, "torch._functorch._aot_autograd.autograd_cache", "AOTAutogradCache._get_tmp_dir_for_key", "caches"),
    _n(PATCHED, "torch._functorch._aot_autograd.graph_compile", "_log_fw_bw_graphs", "profile_details"),
    _n(PATCHED, "torch._functorch._aot_autograd.graph_compile", "_log_joint_graph", "profile_details"),
    _n(PATCHED, "torch._functorch.aot_autograd", "aot_compile_joint_with_descriptors", "ways"),
    _n(PATCHED, "torch._functorch.aot_autograd", "aot_export_joint_with_descriptors", "ways"),
    _n(PATCHED, "torch._functorch.aot_autograd", "aot_stage1_graph_capture", "steps"),
    _n(PATCHED, "torch._functorch.aot_autograd", "aot_stage2_compile", "aot_graphs steps"),
    _n(READ, "torch._functorch.config", "_config", "diagnose_settings"),
    _n(CALLED, "torch._functorch.config", "_is_default", "diagnose_settings"),
    _n(READ, "torch._functorch.config", "backward_pass_autocast", "diagnose_stages workarounds"),
    _n(READ, "torch._functorch.config", "aggressive_recomputation cse guess_tangent_strides_as_outputs", "workarounds"),
    _n(READ, "torch._functorch.config", "donated_buffer treat_parameters_as_free_to_save", "workarounds"),
    _n(READ, "torch._functorch.config", "recompute_views view_replay_for_aliased_outputs", "workarounds"),
    _n(READ, "torch._functorch.config", "bundled_autograd_cache enable_autograd_cache", "caches"),
    _n(READ, "torch._functorch.config", "enable_remote_autograd_cache", "caches"),
    _n(READ, "torch._functorch.config", "fake_tensor_crossref unlift_effect_tokens", "backends"),
    _n(CALLED, "torch._functorch.partitioners", "min_cut_rematerialization_partition", "backends"),
    _n(CALLED, "torch._functorch.pyfunctorch", "temporarily_clear_interpreter_stack", "api_dump"),
    _n(CALLED, "torch._guards", "CompileContext.current_compile_id", "dynamo_graph dump recompiles"),
    _n(CALLED, "torch._guards", "CompileContext.current_trace_id", "component_logs"),
    _n(CALLED, "torch._guards", "CompileContext.try_get", "dump_single_ops diagnose_stages ways"),
    _n(CALLED, "torch._guards", "TracingContext.try_get", "dump_single_ops explain diagnose_stages"),
    _n(CALLED, "torch._guards", "compile_context tracing", "diagnose_stages"),
    _n(CALLED, "torch._guards", "detect_fake_mode", "ir_evaluation"),
    _n(PATCHED, "torch._inductor", "aot_compile aoti_compile_and_package compile", "ways"),
    _n(CALLED, "torch._inductor", "aoti_load_package", "ways"),
    _n(CALLED, "torch._inductor", "list_mode_options", "mode_names"),
    _n(PATCHED, "torch._inductor.package", "load_package", "ways"),
    _n(CALLED, "torch._inductor.async_compile", "AsyncCompile.pool AsyncCompile.process_pool", "child_processes"),
    _n(PATCHED, "torch._inductor.async_compile", "AsyncCompile.wait", "steps"),
    _n(IMPORTED, "torch._inductor", "choices", "warm_children"),
    _n(PATCHED, "torch._inductor.codecache", "FxGraphCache._get_tmp_dir_for_key compiled_fx_graph_hash", "caches"),
    _n(PATCHED, "torch._inductor.codecache", "CppCodeCache._load_library FxGraphCache._save_graph", "profile_details"),
    _n(PATCHED, "torch._inductor.codecache", "FxGraphCache.prepare_key _precompile_header", "profile_details"),
    _n(READ, "torch._inductor.codecache", "PyCodeCache.modules", "inductor_result"),
    _n(IMPORTED, "torch._inductor.codegen", "cpp cpp_wrapper_gpu cuda_combined_scheduling", "warm_children"),
    _n(IMPORTED, "torch._inductor.codegen", "wrapper_fxir", "warm_children"),
    _n(PATCHED, _COMPILE_FX, "_compile_fx_inner", "inductor_result steps"),
    _n(PATCHED, _COMPILE_FX, "_recursive_joint_graph_passes", "nested_graphs"),
    _n(PATCHED, _COMPILE_FX, "_recursive_pre_grad_passes", "nested_graphs"),
    _n(PATCHED, _COMPILE_FX, "_recursive_post_grad_passes", "nested_graphs dump_interpreter diagnose_stages"),
    _n(CALLED, _COMPILE_FX, "compile_fx compile_fx_inner", "dump backends diagnose_stages"),
    _n(CALLED, _COMPILE_FX, "fake_tensor_prop", "dump_interpreter diagnose_stages ir_evaluation"),
    _n(PATCHED, _COMPILE_FX, "joint_graph_passes", "joint_passes steps diagnose_passes"),
    _n(CALLED, _COMPILE_FX, "maybe_disable_comprehensive_padding", "ir_evaluation"),
    _n(PATCHED, _COMPILE_FX, "post_grad_passes", "post_grad_passes steps diagnose_passes"),
    _n(PATCHED, _COMPILE_FX, "pre_grad_passes", "pre_grad_passes steps diagnose_passes"),
    _n(PATCHED, _COMPILE_FX, "view_to_reshape", "silent_passes dump_interpreter diagnose_stages"),
    _n(PATCHED, _COMPILE_FX, "wrap_compiler_debug", "reduce"),
    _n(READ, "torch._inductor.config", "_config", "scheduler_ir diagnose_settings"),
    _n(CALLED, "torch._inductor.config", "_is_default", "diagnose_settings"),
    _n(READ, "torch._inductor.config", "compile_threads worker_start_method", "child_processes"),
    _n(READ, "torch._inductor.config", "fallback_random", "diagnose_settings"),
    _n(READ, "torch._inductor.config", "cpp.inject_relu_bug_TESTING_ONLY", "planted_fault"),
    _n(READ, "torch._inductor.config", "cpp.vec_isa_ok", "warm_children"),
    _n(READ, "torch._inductor.config", "allow_buffer_reuse comprehensive_padding", "workarounds"),
    _n(READ, "torch._inductor.config", "constant_and_index_propagation cpp.simdlen disabled_passes", "workarounds"),
    _n(READ, "torch._inductor.config", "epilogue_fusion inplace_buffers joint_graph_constant_folding", "workarounds"),
    _n(READ, "torch._inductor.config", "layout_optimization loop_ordering_after_fusion pattern_matcher", "workarounds"),
    _n(READ, "torch._inductor.config", "max_pointwise_cat_inputs pick_loop_orders split_reductions", "workarounds"),
    _n(READ, "torch._inductor.config", "unroll_reductions_threshold use_joint_graph_passes", "workarounds"),
    _n(READ, "torch._inductor.config", "use_pre_grad_passes", "workarounds"),
    _n(READ, "torch._inductor.config", "emulate_precision_casts", "diagnose_excess_precision"),
    _n(READ, "torch._inductor.config", "fx_graph_cache fx_graph_remote_cache", "caches"),
    _n(CALLED, "torch._inductor.config", "get_config_copy", "scheduler_ir"),
    _n(READ, "torch._inductor.config", "triton.cudagraphs", "dump"),
    _n(PATCHED, "torch._inductor.cpp_builder", "CppBuilder.build", "steps profile_details"),
    _n(PATCHED, "torch._inductor.cpu_vec_isa", "VecISA.check_build", "profile_details"),
    _n(READ, "torch._inductor.cpu_vec_isa", "supported_vec_isa_list", "warm_children"),
    _n(CALLED, "torch._inductor.cpu_vec_isa", "valid_vec_isa_list x86_isa_checker", "warm_children"),
    _n(PATCHED, "torch._inductor.debug", "DebugContext.__enter__", "lowering"),
    _n(PATCHED, "torch._inductor.debug", "log_ir_post_fusion", "dump_kernel mixing"),
    _n(CALLED, "torch._inductor.decomposition", "fast_random_decomps", "workarounds"),
    _n(READ, "torch._inductor.decomposition", "decompositions extra_random_decomps", "workarounds"),
    _n(CALLED, "torch._inductor.decomposition", "select_decomp_table", "backends"),
    _n(READ, "torch._inductor.dependencies", "WeakDep", "scheduler_ir"),
    _n(CALLED, "torch._inductor.exc", "InductorError", "diagnose_stages"),
    _n(IMPORTED, "torch._inductor.fx_passes", "efficient_conv_bn_eval fuse_attention mkldnn_fusion", "warm_children"),
    _n(IMPORTED, "torch._inductor.fx_passes", "pad_mm quantization", "warm_children"),
    _n(PATCHED, "torch._inductor.fx_passes.joint_graph", "lazy_init", "profile_details"),
    _n(PATCHED, "torch._inductor.fx_passes.post_grad", "lazy_init", "profile_details"),
    _n(CALLED, "torch._inductor.fx_passes.post_grad", "view_to_reshape", "ir_evaluation"),
    _n(PATCHED, "torch._inductor.fx_passes.pre_grad", "lazy_init", "profile_details"),
    _n(PATCHED, "torch._inductor.fx_utils", "FakeTensorUpdater.incremental_update", "profile_details"),
    _n(CALLED, "torch._inductor.graph", "GraphLowering", "ir_evaluation"),
    _n(PATCHED, "torch._inductor.graph", "GraphLowering._compile_to_module_lines GraphLowering.codegen", "steps"),
    _n(PATCHED, "torch._inductor.graph", "GraphLowering.run", "steps"),
    _n(PATCHED, "torch._inductor.graph", "GraphLowering.compile_to_module", "dump_kernel mixing"),
    _n(READ, "torch._inductor.graph", "SubgraphLowering", "lowering"),
    _n(IMPORTED, "torch._inductor", "inductor_prims", "written_programs"),
    _n(READ, "torch._inductor.ir", "AllocatingMultiOutput ExternKernelMultiOut", "ir_evaluation", since="2.12"),
    _n(READ, "torch._inductor.ir", "BaseView Buffer ComputedBuffer ConcatKernel Constant DeviceCopy", "ir_evaluation"),
    _n(READ, "torch._inductor.ir", "IRNode MutableBox NoneAsConstantBuffer Pointwise RandomSeeds", "ir_evaluation"),
    _n(READ, "torch._inductor.ir", "Reduction ReinterpretView Scan ShapeAsConstantBuffer Sort", "ir_evaluation"),
    _n(READ, "torch._inductor.ir", "StorageBox TensorBox", "ir_evaluation"),
    _n(CALLED, "torch._inductor.ir", "Buffer.get_origin_node", "dump_kernel mixing"),
    _n(READ, "torch._inductor.ir", "FlexibleLayout.allow_indexing MutationLayoutSHOULDREMOVE", "mixing ir_evaluation"),
    _n(READ, "torch._inductor.ir", "NonOwningLayout", "mixing ir_evaluation"),
    _n(READ, "torch._inductor.ir", "Layout", "ir_evaluation mixing"),
    _n(CALLED, "torch._inductor.ops_handler", "DefaultHandler", "ir_evaluation"),
    _n(READ, "torch._inductor.lowering", "lowerings", "workarounds"),
    _n(CALLED, "torch._inductor.lowering", "make_fallback", "workarounds"),
    _n(PATCHED, "torch._inductor.pattern_matcher", "GraphPatternEntry.apply", "diagnose_passes"),
    _n(PATCHED, "torch._inductor.pattern_matcher", "LoweringPatternEntry.apply", "diagnose_passes"),
    _n(PATCHED, "torch._inductor.pattern_matcher", "ReplacementPatternEntry.apply", "diagnose_passes"),
    _n(CALLED, "torch._inductor.runtime.cache_dir_utils", "default_cache_dir", "cut_off_libraries"),
    _n(READ, "torch._inductor.scheduler", "FusedSchedulerNode SchedulerNode", "scheduler_ir"),
    _n(READ, "torch._inductor.select_algorithm", "extern_kernels", "ir_evaluation"),
    _n(CALLED, "torch._inductor.utils", "get_donated_idxs", "scheduler_ir"),
    _n(CALLED, "torch._inductor.utils", "sympy_index_symbol", "ir_evaluation"),
    _n(READ, "torch._inductor.virtualized", "OpsValue", "ir_evaluation"),
    _n(READ, "torch._inductor.virtualized", "V.graph", "lowering scheduler_ir dump_kernel inductor_result"),
    _n(READ, "torch._inductor.virtualized", "V.graph.constants", "inductor_result scheduler_ir"),
    _n(READ, "torch._inductor.virtualized", "V.graph.get_output_names V.graph.graph_inputs", "scheduler_ir"),
    _n(READ, "torch._inductor.virtualized", "V.graph.module", "scheduler_ir dump_kernel"),
    _n(READ, "torch._inductor.virtualized", "V.graph.name", "lowering scheduler_ir"),
    _n(READ, "torch._inductor.virtualized", "V.graph.parent", "lowering"),
    _n(READ, "torch._inductor.virtualized", "V.graph.torchbind_constants", "inductor_result"),
    _n(CALLED, "torch._inductor.virtualized", "V.set_extern_kernel_nodes V.set_ops_handler", "ir_evaluation"),
    _n(CALLED, "torch._inductor.virtualized", "V.set_fake_mode", "dump_interpreter ir_evaluation diagnose_stages"),
    _n(CALLED, "torch._inductor.virtualized", "V.set_graph_handler", "ir_evaluation mixing"),
    _n(READ, "torch._library.custom_ops", "OPDEFS", "registrations"),
    _n(READ, "torch._library.simple_registry", "singleton", "registrations"),
    _n(CALLED, "torch._library.simple_registry", "singleton.find", "registrations"),
    _n(CALLED, "torch._library.utils", "Kernel", "registrations"),
    _n(PATCHED, "torch._logging._internal", "LogState.is_artifact_enabled configure_artifact_log", "component_logs"),
    _n(READ, "torch._logging._internal", "log_registry", "component_logs"),
    _n(READ, "torch._ops", "HigherOrderOperator", "operators backends"),
    _n(READ, "torch._ops", "OpOverload", "operators dump_single_ops"),
    _n(READ, "torch._ops", "OpOverloadPacket", "operators"),
    _n(IMPORTED, "torch._prims", "rng_prims", "written_programs"),
    _n(CALLED, "torch._subclasses", "CrossRefFakeMode", "checking_backends"),
    _n(READ, "torch._subclasses.fake_tensor", "FakeTensor", "ir_evaluation beside_compiles"),
    _n(CALLED, "torch._subclasses.fake_tensor", "FakeTensorMode", "ir_evaluation registrations"),
    _n(READ, "torch._subclasses.fake_tensor", "UnsupportedOperatorException", "registrations"),
    _n(CALLED, "torch._subclasses.schema_check_mode", "SchemaCheckMode", "checking_backends"),
    _n(CALLED, "torch.autograd", "Variable._execution_engine.queue_callback", "api_dump"),
    _n(PATCHED, "torch.autograd", "_engine_run_backward", "api_dump compile_calls"),
    _n(READ, "torch.compiler.config", "cache_key_tag", "diagnose_caches workarounds"),
    _n(READ, "torch.distributed.distributed_c10d", "_world.pg_map", "diagnose_ranks"),
    _n(PATCHED, "torch.export", "export", "ways"),
    _n(PATCHED, "torch.export.exported_program", "ExportedProgram.module ExportedProgram.run_decompositions", "ways"),
    _n(PATCHED, "torch.export.pt2_archive._package", "AOTICompiledModel.__call__", "ways"),
    _n(PATCHED, "torch.fx", "symbolic_trace", "ways"),
    _n(PATCHED, "torch.fx.experimental.proxy_tensor", "PythonKeyTracer.create_node _MakefxTracer.trace", "ways"),
    _n(CALLED, "torch.fx._lazy_graph_module", "_use_lazy_graph_module", "reduce"),
    _n(CALLED, "torch.fx.graph_module", "_forward_from_src", "reduce"),
    _n(PATCHED, "torch.fx.graph_module", "GraphModule.__deepcopy__ GraphModule.__init__ _WrappedCall.__call__", "ways"),
    _n(PATCHED, "torch.fx.graph_module", "_print_readable", "profile_details"),
    _n(PATCHED, _OBSERVER[0], f"{_OBSERVER[1]}.__enter__", "passes profile_passes diagnose_passes"),
    _n(PATCHED, _OBSERVER[0], f"{_OBSERVER[1]}.__exit__", "passes profile_passes diagnose_passes"),
    _n(PATCHED, _OBSERVER[0], f"{_OBSERVER[1]}.apply_gm_pass {_OBSERVER[1]}.apply_graph_pass", "diagnose_passes"),
    _n(CALLED, "torch.multiprocessing.reductions", "StorageWeakRef", "dump_steps"),
    _n(READ, "torch.nn.modules.module", "_global_backward_hooks _global_backward_pre_hooks", "api_regions"),
    _n(READ, "torch.nn.modules.module", "_global_forward_hooks _global_forward_hooks_always_called", "api_regions"),
    _n(READ, "torch.nn.modules.module", "_global_forward_pre_hooks", "api_regions"),
    _n(PATCHED, "torch.nn.modules.module", "_has_any_global_hook", "api_regions"),
    _n(READ, "torch.optim.optimizer", "_get_value _stack_if_compiling", "diagnose_optimizers"),
    _n(CALLED, "torch.overrides", "_get_current_function_mode_stack _pop_mode _push_mode", "api_dump"),
    _n(READ, "torch.utils._config_module", "ContextVar", "caches", since="2.12"),
    _n(READ, "torch.utils._python_dispatch", "TorchDispatchMode", "operators dump_single_ops"),
    _n(CALLED, "torch.utils._python_dispatch", "TorchDispatchMode.ignore_compile_internals", "dump_single_ops"),
    _n(CALLED, "torch.utils._python_dispatch", "_disable_current_modes", "beside_compiles"),
    _n(CALLED, "torch.utils._pytree", "key_get tree_unflatten", "ir_evaluation"),
    _n(CALLED, "torch.utils._pytree", "tree_flatten", "containers ir_evaluation"),
    _n(CALLED, "torch.utils._pytree", "tree_leaves tree_map tree_structure", "containers"),
)
"""By module; a row has the names of one use for the same capabilities."""

NAMES: tuple[Name, ...] = tuple(
    sorted((name for row in _TABLE for name in row), key=lambda name: (name.module, name.attribute))
)


def missing(*, names: Iterable[Name] = NAMES, while_lowering: bool = False) -> dict[str, str]:
    """By capability, the first name for it that the installed torch should have and has not; imports torch's modules.

    `while_lowering`: those names are looked up that are there only while Inductor lowers a graph, as it does now.
    """
    import torch

    found: dict[str, str] = {}
    for name in names:
        wanted = name.only_while_lowering == while_lowering and name.is_in(torch.__version__)
        wanted = wanted and (name.attribute != ONLY_NESTED or _nested())
        if wanted and not set(name.needed_for) <= found.keys() and not name.is_there():
            found = dict.fromkeys(name.needed_for, name.address) | found
    return found


def _nested() -> bool:
    from torch._inductor.virtualized import V

    return type(V.graph).__name__ == "SubgraphLowering"


def misleading() -> list[str]:
    """Where the installed torch is known to mislead its user."""
    import torch

    return [text for since, until, text in MISLEADING if Name("", "", READ, (), since, until).is_in(torch.__version__)]


def require(module: str, attribute: str, *, purpose: str) -> Any:
    """`module.attribute` of the installed torch.

    Args:
        module: dotted module name, e.g. `torch._dynamo.backends.common`.
        attribute: a name inside it, dotted if it is deeper; a module of a package is imported if need be.
        purpose: what stands on it, for the message, e.g. `the backend 'eager_debug'`.

    Raises:
        UnsupportedTorchError: the module or the name is not there.
    """
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise _unsupported(f"{module} cannot be imported ({error})", purpose) from error
    for part in attribute.split("."):
        found = getattr(found, part, _MISSING)
        if found is _MISSING:
            break
    else:
        return found
    try:
        return importlib.import_module(f"{module}.{attribute}")
    except ImportError as error:
        raise _unsupported(f"there is no {module}.{attribute}", purpose) from error


def _unsupported(what: str, purpose: str) -> UnsupportedTorchError:
    import torch

    return UnsupportedTorchError(f"torch {torch.__version__} lacks what {purpose} needs: {what}", hint=SUPPORTED_HINT)
