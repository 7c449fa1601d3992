"""Taps that tell when a step of the compiler begins and ends, where no other tap does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from graphprobe.internals.bus import Advice, Patch, Subscriber, advised
from graphprobe.internals.context import Frame, current, unobserved
from graphprobe.internals.dynamo.compile_facts import compiled_now
from graphprobe.internals.dynamo.dynamo_taps import backend_name
from graphprobe.internals.observer import StepObserver

TAP = "steps"

STEPS = (
    # Not `_compile` around it: that counts the frames of its callers.
    ("torch._dynamo.convert_frame", "compile_frame", "dynamo", "trace"),
    ("torch._dynamo.guards", "CheckFunctionManager.__init__", "dynamo", "build guards"),
    ("torch._dynamo.output_graph", "OutputGraph.call_user_compiler", "backend", "compile"),
    ("torch._functorch.aot_autograd", "aot_stage1_graph_capture", "aot", "trace with AOTAutograd"),
    ("torch._functorch.aot_autograd", "aot_stage2_compile", "aot", "partition and compile"),
    ("torch._inductor.compile_fx", "pre_grad_passes", "inductor", "run the pre-grad passes"),
    ("torch._inductor.compile_fx", "joint_graph_passes", "inductor", "run the joint-graph passes"),
    ("torch._inductor.compile_fx", "_compile_fx_inner", "inductor", "compile"),
    ("torch._inductor.compile_fx", "post_grad_passes", "inductor", "run the post-grad passes"),
    ("torch._inductor.graph", "GraphLowering.run", "inductor", "lower"),
    ("torch._inductor.graph", "GraphLowering.codegen", "inductor", "generate code"),
    ("torch._inductor.graph", "GraphLowering._compile_to_module_lines", "inductor", "load the generated code"),
    ("torch._inductor.async_compile", "AsyncCompile.wait", "inductor", "wait for kernels"),
    ("torch._inductor.cpp_builder", "CppBuilder.build", "inductor", "compile C++"),
)
"""Where a step is, its component, and its name."""

IN_ANY_THREAD = ("CheckFunctionManager.__init__", "CppBuilder.build")
"""Told also in threads that know of no compile, as those that build kernels."""


def _function(args: tuple[Any, ...]) -> str:
    code, named = args[0], compiled_now()
    if named is not None and (named.module is not None or (not named.resumed and named.name != code.co_name)):
        return f"{named.name} ({named.file}:{named.line})"
    name = getattr(code, "co_qualname", None) or code.co_name
    return f"{name.replace('<locals>.', '')} ({code.co_filename}:{code.co_firstlineno})"


_DETAILS: Mapping[str, Callable[[tuple[Any, ...]], str]] = {
    "compile_frame": _function,
    "OutputGraph.call_user_compiler": lambda args: backend_name(args[0].compiler_fn),
    "CppBuilder.build": lambda args: str(getattr(args[0], "_target_file", "")),  # what is to come of it
}
"""What a step works on, from the arguments of its function."""


def patches(observer: StepObserver) -> list[Patch]:
    """The taps of this module. They go in before all others, and so find what those have noted of the compile."""
    to = Subscriber(observer)

    def wanted(attribute: str, frame: Frame | None) -> bool:
        if attribute == "compile_frame":
            return to.tell("step trace", observer.frame_begins, False)
        return frame is not None or (attribute in IN_ANY_THREAD and not unobserved())

    def step(attribute: str, component: str, name: str) -> Callable[..., Advice]:
        detail = _DETAILS.get(attribute, lambda args: "")

        def run_step(*args: Any, **kwargs: Any) -> Advice:
            frame = current()
            if not wanted(attribute, frame):
                return
            begun = to.tell(f"step {name}", lambda: observer.step_begins(component, name, detail(args), frame), None)
            _, error = yield
            to.tell(f"end of step {name}", lambda: observer.step_ends(begun, error), None)

        return run_step

    return [advised(TAP, module, name, step(name, component, what)) for module, name, component, what in STEPS]
