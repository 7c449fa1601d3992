"""What torch's names of compile phases mean, and which of them are frames around other phases."""

from __future__ import annotations

import re

FRAMES = frozenset(
    {
        "dynamo",
        "entire_frame_compile",
        "compile_attempt",
        "backend_compile",
        "create_aot_dispatcher_function",
        "compile_fx.<locals>.fw_compiler_base",
        "compile_fx.<locals>.bw_compiler",
        "inductor_compile",
        "fx_codegen_and_compile",
        "GraphLowering.compile_to_fn",
        "code_gen",
        "entire_backward_compile",
    }
)
"""These only hold other phases: what they spend between those has no name of its own."""

GLOSSES = {
    "additional_fake_tensor_prop": "shapes and dtypes of every node before the post-grad passes",
    "aot_collect_metadata": "AOTAutograd runs the graph for aliases and mutations",
    "aot_trace_joint_graph": "AOTAutograd traces forward and backward, decompositions included",
    "aot_trace_inference_graph": "AOTAutograd traces, decompositions included",
    "async_compile.wait": "waits for kernels that are compiled in other threads or processes",
    "autograd_cache_key": "hash of the graph for AOTAutograd's cache",
    "build_guards": "Dynamo builds and checks the guards",
    "bytecode_tracing": "Dynamo traces the function",
    "compile_file": "the C++ compiler",
    "cpp_build": "a C++ file is built, without the compiler's own time",
    "fake_tensor_update": "shapes and dtypes again, after passes",
    "fx_graph_cache_key": "hash of the graph for Inductor's cache",
    "fx_graph_cache_save": "a compiled graph is written to Inductor's cache",
    "gc": "garbage collection after a compile",
    "GraphLowering.codegen": "Inductor generates code",
    "GraphLowering.run": "Inductor lowers each node to its IR",
    "imports": "modules that are imported while compiling",
    "inductor_codecache_torch_key": "hash of torch's sources for the cache keys",
    "insert_deferred_runtime_asserts": "checks of symbolic shapes are put into the graph",
    "load_library": "a compiled kernel is loaded",
    "log_graphs": "graphs are formatted for torch's logs",
    "min_cut_rematerialization_partition": "the joint graph is cut into forward and backward",
    "pattern_registration": "patterns of Inductor's passes are traced, once a process",
    "print_graph": "graphs are formatted for torch's logs",
    "precompile_header": "the header of C++ kernels is preprocessed and hashed, once a process",
    "PyCodeCache.load_by_key_path": "the generated module is loaded",
    "PythonWrapperCodegen.generate": "Inductor writes the wrapper around the kernels",
    "_recursive_joint_graph_passes": "joint-graph passes that have no name",
    "_recursive_post_grad_passes": "post-grad passes that have no name",
    "_recursive_pre_grad_passes": "pre-grad passes that have no name",
    "Scheduler.__init__": "dependencies between IR nodes",
    "Scheduler.codegen": "Inductor generates the kernels",
    "Scheduler.fused_nodes": "Inductor decides what to fuse",
    "TritonBundler.collect": "Triton kernels are put into the cache",
    "vector_isa_check": "does this processor run what the C++ compiler makes, once a process",
}
"""By name of a phase: what is done in it."""

_NUMBERED = re.compile(r"^(compile_attempt|bytecode_hooks)_\d+$")


def phase_name(name: str, kind: str) -> str:
    """The row of the table that a span belongs to: attempts are one phase, so are imports, and each group of passes."""
    if kind == "import":
        return "imports"
    if kind == "pass":
        return f"passes in {pass_group(name)}"
    numbered = _NUMBERED.match(name)
    return numbered.group(1) if numbered else name


def pass_group(name: str) -> str:
    """`post_grad_passes` of `pass.post_grad_passes.stable_sort`; `no group` for a pass that torch gives none."""
    group, dot, _ = name.removeprefix("pass.").partition(".")
    return group if dot else "no group"


def gloss(name: str) -> str:
    """What is done in a phase, in a few words; empty when the name is all that is known."""
    if name in FRAMES:
        return "between the phases inside it"
    return GLOSSES.get(name, "")
