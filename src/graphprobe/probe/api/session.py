"""An API dump from its begin to its end: the step, modules, parameters and lines of now, and what failed."""

from __future__ import annotations

import itertools
import linecache
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any

import torch

import graphprobe
from graphprobe.internals.dynamo.compile_facts import frames_from
from graphprobe.internals.operators.api_calls import running_modules
from graphprobe.internals.operators.autograd_edges import graph_task, in_compiled_backward
from graphprobe.probe.api.call import Collector, OpenCall
from graphprobe.probe.api.plan import ApiPlan, CallSelection
from graphprobe.store.api_writer import ApiWriter, Head
from graphprobe.store.calls import CallKind

_HIDDEN = tuple(os.path.dirname(os.path.abspath(module.__file__ or "")) + os.sep for module in (torch, graphprobe))
_HIDDEN_FILES = ("<frozen", "<string>/torch", "<eval_with_key>")
MAX_FRAMES = 64

_STANDARD = frozenset({os.path.join(os.path.dirname(os.__file__), name) for name in ("contextlib.py", "functools.py")})

_CHECKPOINT = str(getattr(sys.modules.get("torch.utils.checkpoint"), "__file__", "")) or os.path.join(
    os.path.dirname(torch.__file__), "utils", "checkpoint.py"
)

_WRAPPERS = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)


class Frames:
    """Names files as a reader knows them: relative to the working directory where they lie in it."""

    def __init__(self) -> None:
        self._files: dict[int, tuple[str, CodeType]] = {}
        """By identity, since the hash of a code object goes through all of its constants; it is kept for that."""
        self._folder = os.getcwd() + os.sep

    def source(self, frame: FrameType | None) -> str:
        """`file.py:12` of the innermost frame of the program; empty without one."""
        files = self._files
        while frame is not None:
            code = frame.f_code
            known = files.get(id(code))
            file = known[0] if known is not None else self._learn(code)
            if file:
                return f"{file}:{frame.f_lineno}"
            frame = frame.f_back
        return ""

    def stack(self, frame: FrameType | None) -> tuple[str, ...]:
        """`file.py:12 in forward: x = self.fc(x)` of each frame of the program, outermost last."""
        lines: list[str] = []
        while frame is not None and len(lines) < MAX_FRAMES:
            code = frame.f_code
            known = self._files.get(id(code))
            file = known[0] if known is not None else self._learn(code)
            if file:
                text = linecache.getline(code.co_filename, frame.f_lineno).strip()
                lines.append(f"{file}:{frame.f_lineno} in {code.co_name}" + (f": {text}" if text else ""))
            frame = frame.f_back
        return tuple(lines)

    def _learn(self, code: CodeType) -> str:
        path = code.co_filename
        hidden = path.startswith((*_HIDDEN, *_HIDDEN_FILES)) or path in _STANDARD
        file = "" if hidden else path.removeprefix(self._folder)
        self._files[id(code)] = (file, code)
        return file


def in_recomputation(frame: FrameType) -> bool:
    """Whether a frame of `torch.utils.checkpoint` is below: what runs then was run before."""
    return any(one.f_code.co_filename == _CHECKPOINT for one in frames_from(frame))


class Paths:
    """Names modules as the program's root does. Keeps none alive.

    The first root is not named in paths, unless several were given under names; another begins with its class's name.
    """

    def __init__(self, model: torch.nn.Module | Mapping[str, torch.nn.Module] | None) -> None:
        self._modules: dict[int, tuple[weakref.ref[torch.nn.Module], str]] = {}
        self._parameters: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}
        self._roots: dict[str, int] = {}
        if isinstance(model, torch.nn.Module):
            self._add_root(model, "")
        elif model is not None:
            for name, one in model.items():
                self._add_root(one, name)

    def module(self, module: torch.nn.Module, parent: str | None) -> str:
        """The path of a module that is called inside `parent`, None for outside of all."""
        found = self._modules.get(id(module))
        if found is not None and found[0]() is module:
            return found[1]
        name = type(module).__name__
        self._add_root(module, None if parent is None else f"{parent}.{name}" if parent else name)
        return self._modules[id(module)][1]

    def parameter(self, tensor: torch.Tensor) -> str:
        """The name of a parameter; empty where no root that was met has it."""
        found = self._parameters.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else ""

    def _add_root(self, root: torch.nn.Module, name: str | None) -> None:
        if name is None:
            name = type(root).__name__ if self._roots else ""
            count = self._roots.get(name, 0)
            self._roots[name] = count + 1
            if count:
                name = f"{name}#{count}"
        else:
            self._roots.setdefault(name, 1)
        prefix = f"{name}." if name else ""
        if isinstance(root, _WRAPPERS):  # it stands for what it wraps, so that a run without it has the same paths
            self._modules[id(root)] = (weakref.ref(root), name)
            root = root.module
        for path, module in root.named_modules():
            entry = self._modules.get(id(module))
            if entry is None or entry[0]() is not module:
                self._modules[id(module)] = (weakref.ref(module), prefix + path if path else name)
        for path, parameter in root.named_parameters():
            known: Any = self._parameters.get(id(parameter))
            if known is None or known[0]() is not parameter:
                self._parameters[id(parameter)] = (weakref.ref(parameter), prefix + path)


class ApiSession(Collector):
    """One dump. `on` says whether anything is collected now.

    Attributes:
        step: the number of the current step.
        hidden, hides: the hooks of modules are out now; how often they have been.
    """

    def __init__(self, plan: ApiPlan, writer: ApiWriter, *, model: Any = None) -> None:
        super().__init__(plan, writer)
        self.paths = Paths(model)
        for one in model.values() if isinstance(model, Mapping) else [model]:
            if one is not None:
                self.values.held.learn(one, below=True)
        self.frames = Frames()
        self.selection = CallSelection(plan)
        self.step = 0
        self.closed = False
        self.hidden, self.hides = False, 0
        self.recomputed = 0
        self.recover: Callable[[], None] = lambda: None
        """Called where collecting is off, to find out whether what has switched it off is gone by an exception."""
        self.watch_calls: Callable[[bool], bool] = bool
        """Called between two steps with whether the next is wanted; says whether calls are watched from now on."""
        self._lock = threading.RLock()
        self._counts: dict[tuple[str, str], itertools.count[int]] = {}
        self._step_is_due = False
        self._by_hand = plan.step_at == "hand"
        self.on = self._wants(0)

    # What the observers call.

    @property
    def modules(self) -> list[tuple[torch.nn.Module, str, OpenCall | None]]:
        """`state.modules`, without modules whose end no hook has told: another thread had taken the hooks out."""
        state = self.state
        if state.modules and (self.hidden or state.hides != self.hides):
            running = set(map(id, running_modules()))
            state.modules[:] = [entry for entry in state.modules if id(entry[0]) in running]
        state.hides = self.hides
        return state.modules

    def begin(
        self,
        kind: CallKind,
        api: str,
        label: str,
        names: tuple[str, ...],
        frame: FrameType,
        *,
        module: str = "",
        changes: bool = False,
    ) -> OpenCall | None:
        """Begin a call, None where it is not wanted; its inputs are still to be taken.

        `label` lacks the number of the call.
        """
        if self._step_is_due:
            self._next_step()
            if not self.on:
                return None
        if in_compiled_backward():
            return None
        again = graph_task() >= 0 and in_recomputation(frame)
        if again:
            self.recomputed += 1
            if not torch.is_grad_enabled() or not in_reentrant(frame):
                return None
        index = -1 if again else self._index(kind, api)
        full = f"{label}.{index}" if index >= 0 else f"{label}.recomputed{self.recomputed}"
        if not (self.selection.everything or self.selection.wants(full, api, names)):
            return None
        source = self.frames.source(frame)
        stack = self.frames.stack(frame) if self.plan.stack else ()
        head = Head(self.step, kind, api, full, index, module, source, stack, self.state.name)
        return OpenCall(self, head, changes=changes, only_backward=again)

    # Steps.

    def advance(self) -> None:
        """The program says that a step is over."""
        self.recover()
        with self._lock:
            self._by_hand = True
            self._next_step()
        self.watch_calls(self.on)

    def begin_due_step(self) -> None:
        if self.is_due():
            self._next_step()

    def optimizer_stepped(self) -> None:
        """An optimizer has stepped: the next call is of the next step, unless the program says itself when one ends."""
        if self._by_hand:
            return
        self._step_is_due = True
        if not self.watch_calls(not self.broken and self._wants(self.step + 1)):
            self._next_step()  # no call will

    def finish(self) -> None:
        """Collect nothing more."""
        self.on = False
        for waiting in list(self._tasks.values()):
            waiting.clear()
        for text in self.selection.unmet():
            self.writer.note(text)
        if self.recomputed:
            self.writer.note(
                f"{self.recomputed} calls that torch.utils.checkpoint ran again have no record of their own"
            )

    def is_due(self) -> bool:
        """Whether a step is to begin with the next call, which `begin` does; then the call must be looked at."""
        return self._step_is_due and not self.broken

    def _next_step(self) -> None:
        with self._lock:
            self._step_is_due = False
            self.step += 1
            self._counts.clear()
            self.on = not self.broken and self._wants(self.step)

    def _wants(self, step: int) -> bool:
        return self.plan.steps is None or step in self.plan.steps

    def _index(self, kind: str, api: str) -> int:
        key = (kind, api)
        counter = self._counts.get(key)
        if counter is None:
            counter = self._counts.setdefault(key, itertools.count())
        return next(counter)


def in_reentrant(frame: FrameType) -> bool:
    """Whether the recomputation builds the graph that the backward goes through, and not only its saved values."""
    codes = (one.f_code for one in frames_from(frame))
    return any(code.co_name == "backward" and code.co_filename.endswith("checkpoint.py") for code in codes)
