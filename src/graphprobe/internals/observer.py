"""What the taps of a session tell its observer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from graphprobe.analysis.breaks_facts import BreakFact, UncompiledFact
from graphprobe.analysis.recompile_facts import Recompile
from graphprobe.internals.bus import Listener
from graphprobe.internals.context import Frame


class FrameFacts(msgspec.Struct, kw_only=True):
    """Why and what Dynamo hands to a backend.

    Attributes:
        compile_id: torch's compile id as text, None outside Dynamo.
        function, file, line: the traced function, as far as known; of a module's `forward` the class.
        backend: name of the backend.
        mode: the mode of `torch.compile` whose settings it has.
        graph_break: the reason for which tracing stopped, None when it reached the end of the function.
        break_stack: user stack at that place, `file:line in function`, outermost first.
        resumed: True when the function is the continuation behind an earlier graph break.
        recompile_reason: the guard that failed, None for the first compile of a function.
        backend_object: the backend itself.
        made_by: what exported or traced it, `make_fx (train.py:12)`; None of what Dynamo traced.
    """

    compile_id: str | None = None
    function: str | None = None
    file: str | None = None
    line: int | None = None
    backend: str | None = None
    mode: str | None = None
    graph_break: str | None = None
    break_stack: list[str] = []
    resumed: bool = False
    recompile_reason: str | None = None
    backend_object: Any = None
    made_by: str | None = None


class BreakObserver(Listener, Protocol):
    """Told of graph breaks. May look at everything, may change nothing."""

    def graph_break(self, fact: BreakFact, backend: object) -> None:
        """Tracing stopped. `backend` is what the function is compiled with, None where that is not known."""

    def uncompiled(self, fact: UncompiledFact, backend: object) -> None:
        """Dynamo leaves a function uncompiled."""


class RecompileObserver(Listener, Protocol):
    """Told of each recompilation. May change nothing."""

    def recompiled(self, fact: Recompile, backend: object) -> None:
        """A call fitted none of the compiled versions of its function, which `backend` compiles."""


class StepObserver(Listener, Protocol):
    """Told of steps. A step lies inside those of the same thread that have begun and not ended."""

    def frame_begins(self) -> bool:
        """Dynamo is about to trace a function; False: nobody wants to know."""

    def step_begins(self, component: str, name: str, detail: str, frame: Frame | None) -> int | None:
        """A step begins; the number is given back to `step_ends`."""

    def step_ends(self, step: int | None, error: BaseException | None) -> None:
        """… and is over, or was left by an exception."""


class CompileObserver(BreakObserver, RecompileObserver, StepObserver, Protocol):
    """Told what the compiler does. May look at everything, may change nothing."""

    def wants(self, backend: object) -> bool:
        """Whether a compile by this backend is to be observed."""

    def watching(self) -> bool:
        """Whether collecting is still on."""

    def model_begins(self, facts: FrameFacts, gm: Any, example_inputs: Sequence[Any]) -> object:
        """A backend is about to get Dynamo's graph. Returns the token that later calls carry."""

    def model_ends(self, token: object, compiled: Any, error: BaseException | None) -> Any:
        """The backend has returned, or raised. Returns what the program gets instead of `compiled` (usually itself)."""

    def caches_bypassed(self, token: object, names: list[str]) -> None:
        """These graph caches are off while the model is compiled."""

    def aot_begins(self, token: object) -> object:
        """AOTAutograd begins on the model's graph, or on a piece of it. Returns the token of the later calls."""

    def aot_graph(self, frame: Frame, gm: Any) -> None:
        """AOTAutograd made the joint, forward or backward graph."""

    def aot_compiles(self, frame: Frame, gm: Any) -> None:
        """The forward or backward graph is handed to the compiler."""

    def aot_compiled(self, frame: Frame, gm: Any, compiled: Any, error: BaseException | None) -> Any:
        """The compiler has returned or raised. Returns what AOTAutograd gets instead of `compiled`."""

    def phase_begins(self, frame: Frame, gm: Any) -> str | None:
        """A group of passes starts on a graph or a nested graph, whose name is returned."""

    def phase_ends(self, frame: Frame, gm: Any, error: BaseException | None) -> None:
        """… and is over."""

    def pass_begins(self, frame: Frame, gm: Any, name: str, subsystem: str | None) -> object:
        """A pass starts. The result is given back to `pass_ends`."""

    def pass_ends(self, frame: Frame, gm: Any, name: str, started: object, error: BaseException | None) -> None:
        """A pass is over."""

    def lowering(self, frame: Frame, event: str, *args: Any) -> None:
        """Inductor: `fx_graph`, `fx_graph_transformed`, `ir_pre_fusion`, `ir_post_fusion` or `output_code`."""

    def inductor_begins(self, frame: Frame, gm: Any, example_inputs: Sequence[Any], options: dict[str, Any]) -> None:
        """Inductor is about to compile one graph for these inputs, with these keyword options."""

    def inductor_compiled(self, frame: Frame, output: Any) -> None:
        """Inductor has made its callable for one graph."""

    def metrics(self, compile_id: str | None, values: dict[str, Any]) -> None:
        """torch's own record of a compile or a backward compile."""

    def guards(self, compile_id: str | None, guards: list[dict[str, Any]]) -> None:
        """The guards under which the compiled code may run."""
