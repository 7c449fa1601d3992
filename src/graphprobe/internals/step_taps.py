"""Taps that tell when a step of the compiler begins and ends, where no other tap does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from graphprobe.internals.bus import Patch, Subscriber
from graphprobe.internals.context import Frame, current, unobserved
from graphprobe.internals.dynamo.compile_facts import compiled_now
from graphprobe.internals.dynamo.dynamo_taps import backend_name
from graphprobe.internals.unseen import unseen

TAP = "steps"

Detail = Callable[[tuple[Any, ...]], str]
"""What a step works on, from the arguments of the tapped function."""


class StepObserver(Protocol):
    """Told of steps. A step lies inside those of the same thread that have begun and not ended."""

    def frame_begins(self) -> bool:
        """Dynamo is about to trace a function; False: nobody wants to know."""

    def step_begins(self, component: str, name: str, detail: str, frame: Frame | None) -> int | None:
        """A step begins; the number is given back to `step_ends`."""

    def step_ends(self, step: int | None, error: BaseException | None) -> None:
        """… and is over, or was left by an exception."""

    def failed(self, what: str, details: str) -> None:
        """One of the calls above raised."""


def _tap(
    to: Subscriber[StepObserver], component: str, name: str, wanted: Callable[[Frame | None], bool], detail: Detail
) -> Callable[[Any], Any]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def run_step(*args: Any, **kwargs: Any) -> Any:
            frame = current()
            if not wanted(frame):
                with unseen:
                    return original(*args, **kwargs)
            step = f"step {name}"
            number = to.tell(step, lambda: to.observer.step_begins(component, name, detail(args), frame), None)
            try:
                with unseen:
                    result = original(*args, **kwargs)
            except BaseException as error:
                failure = error
                to.tell(f"end of {step}", lambda: to.observer.step_ends(number, failure), None)
                raise
            to.tell(f"end of {step}", lambda: to.observer.step_ends(number, None), None)
            return result

        run_step.__dict__.update(getattr(original, "__dict__", {}))
        run_step.__name__ = getattr(original, "__name__", "step")
        run_step.__wrapped__ = original  # type: ignore[attr-defined]
        return run_step

    return make


def _observed(frame: Frame | None) -> bool:
    return frame is not None


def _not_hidden(frame: Frame | None) -> bool:
    """Also in threads that know of no compile, as those that build kernels."""
    return frame is not None or not unobserved()


def _nothing(args: tuple[Any, ...]) -> str:
    return ""


def _function(args: tuple[Any, ...]) -> str:
    code, named = args[0], compiled_now()
    if named is not None and (named.module is not None or (not named.resumed and named.name != code.co_name)):
        return f"{named.name} ({named.file}:{named.line})"
    name = getattr(code, "co_qualname", None) or code.co_name
    return f"{name.replace('<locals>.', '')} ({code.co_filename}:{code.co_firstlineno})"


def _backend(args: tuple[Any, ...]) -> str:
    """Of `OutputGraph.call_user_compiler`: the backend's name."""
    return backend_name(args[0].compiler_fn)


def _target(args: tuple[Any, ...]) -> str:
    """Of `CppBuilder.build`: the file that is to come of it."""
    return str(getattr(args[0], "_target_file", ""))


def patches(observer: StepObserver) -> list[Patch]:
    """The taps of this module. They go in before all others, and so find what those have noted of the compile."""

    to = Subscriber(observer)

    def frames(_: Frame | None) -> bool:
        return to.tell("step trace", observer.frame_begins, False)

    def tap(
        component: str, name: str, wanted: Callable[[Frame | None], bool] = _observed, detail: Detail = _nothing
    ) -> Any:
        return _tap(to, component, name, wanted, detail)

    aot, graph, compile_fx = "torch._functorch.aot_autograd", "torch._inductor.graph", "torch._inductor.compile_fx"
    return [
        # Not `_compile` around it: that counts the frames of its callers.
        Patch(TAP, "torch._dynamo.convert_frame", "compile_frame", tap("dynamo", "trace", frames, _function)),
        Patch(TAP, "torch._dynamo.guards", "CheckFunctionManager.__init__", tap("dynamo", "build guards", _not_hidden)),
        Patch(
            TAP,
            "torch._dynamo.output_graph",
            "OutputGraph.call_user_compiler",
            tap("backend", "compile", detail=_backend),
        ),
        Patch(TAP, aot, "aot_stage1_graph_capture", tap("aot", "trace with AOTAutograd")),
        Patch(TAP, aot, "aot_stage2_compile", tap("aot", "partition and compile")),
        Patch(TAP, compile_fx, "pre_grad_passes", tap("inductor", "run the pre-grad passes")),
        Patch(TAP, compile_fx, "joint_graph_passes", tap("inductor", "run the joint-graph passes")),
        Patch(TAP, compile_fx, "_compile_fx_inner", tap("inductor", "compile")),
        Patch(TAP, compile_fx, "post_grad_passes", tap("inductor", "run the post-grad passes")),
        Patch(TAP, graph, "GraphLowering.run", tap("inductor", "lower")),
        Patch(TAP, graph, "GraphLowering.codegen", tap("inductor", "generate code")),
        Patch(TAP, graph, "GraphLowering._compile_to_module_lines", tap("inductor", "load the generated code")),
        Patch(TAP, "torch._inductor.async_compile", "AsyncCompile.wait", tap("inductor", "wait for kernels")),
        Patch(
            TAP, "torch._inductor.cpp_builder", "CppBuilder.build", tap("inductor", "compile C++", _not_hidden, _target)
        ),
    ]
