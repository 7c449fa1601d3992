"""Stands between the launches of an Inductor wrapper module: same kernels, same arguments, and a note of each call."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

import msgspec

from graphprobe.internals.launch_io import buffers_by_line, declarations
from graphprobe.internals.unseen import unseen

OP_NAMESPACES = ("aten", "inductor_ops", "_quantized")
EXTERN = "extern_kernels"

_entering = threading.Lock()
_in_place: dict[int, _StandIns] = {}
"""Modules whose globals are replaced at this moment, by id. Graphs with the same code share a module."""


class Launch(msgspec.Struct, frozen=True):
    """One launch, as it happened.

    Attributes:
        name: kernel, `extern_kernels.mm`, or `aten.<op>.<overload>`.
        kind: `kernel` (generated), `extern` (library call) or `op` (fallback through the dispatcher).
        start_ns, elapsed_ns: monotonic clock; on CUDA the time to enqueue, not to run.
        line: line of the call in the generated module.
        arguments: `dtype[shape]` of each tensor argument, the text of each scalar.
        capturing: whether a CUDA graph was being captured on the current stream.
        thread: native id of the launching thread.
    """

    name: str
    kind: str
    start_ns: int
    elapsed_ns: int
    line: int
    arguments: tuple[str, ...]
    capturing: bool
    thread: int


class Launching:
    """A launch that is about to happen, for those who do something around it or in its place.

    Attributes:
        name, kind, line: as in `Launch`.
        args, kwargs: what it was called with.
    """

    __slots__ = ("_frame", "_function", "args", "kind", "kwargs", "line", "name")

    def __init__(
        self, name: str, kind: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any, frame: Any
    ) -> None:
        self.name, self.kind, self.args, self.kwargs = name, kind, args, kwargs
        self._function, self._frame = function, frame
        self.line = int(frame.f_lineno)

    def run(self) -> Any:
        """Launch it, as the program does, and return what it returns."""
        with unseen:
            return self._function(*self.args, **self.kwargs)

    def variables(self) -> dict[str, Any]:
        """The wrapper's variables at this moment, by name; those of the module where the function has none."""
        return {**self._frame.f_globals, **self._frame.f_locals}


Around = Callable[[Launching], Any]
"""Is called in place of a launch and returns what the launch shall return; `launching.run()` launches it."""


def _describe(value: Any) -> str:
    dtype = getattr(value, "dtype", None)
    shape = getattr(value, "shape", None)
    if dtype is None or shape is None:
        return repr(value)[:64] if isinstance(value, int | float | bool | str | None) else type(value).__name__
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


class LaunchTap:
    """Records the launches that this thread makes through one generated module while `recording()` is entered.

    Several may record on one thread at once, and each sees every launch: the one that was entered first stands
    outermost, and what it runs goes through the next. One that is entered again meanwhile still sees a launch once.
    """

    def __init__(self, module: ModuleType, code: str, *, around: Around | None = None) -> None:
        """With `around` every launch goes through it, with the same arguments, and `launches` stays empty."""
        self._module = module
        self._names = vars(module)
        self._around = around
        self._kernels = [name for name in declarations(code) if name in vars(module)]
        self._buffers = buffers_by_line(code)
        self._cuda = "cuda" in code or "triton" in code
        self.launches: list[Launch] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Put the recording names into the module's globals, and the real ones back on the way out."""
        with _entering:
            stand_ins = _in_place.get(id(self._module))
            if stand_ins is None:
                stand_ins = _in_place[id(self._module)] = _StandIns(self._module, self._kernels)
            entered = stand_ins.enter(self)
        try:
            yield
        finally:
            with _entering:
                if entered and stand_ins.leave(self):
                    del _in_place[id(self._module)]

    def call(self, name: str, kind: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        frame = self._calling_frame()
        if self._around is not None:
            return self._around(Launching(name, kind, function, args, kwargs, frame))
        line = frame.f_lineno
        start = time.perf_counter_ns()
        with unseen:
            result = function(*args, **kwargs)
        elapsed = time.perf_counter_ns() - start
        described = tuple(_describe(a) for a in args) + tuple(f"{k}={_describe(v)}" for k, v in kwargs.items())
        self.launches.append(
            Launch(name, kind, start, elapsed, line, described, self._capturing(), threading.get_native_id())
        )
        return result

    def buffers(self, launch: Launch) -> tuple[str, ...]:
        """Names that the launch's line takes and binds, see `buffers_by_line`."""
        return self._buffers.get(launch.line, ())

    def _calling_frame(self) -> FrameType:
        names = self._names
        frame = sys._getframe(3)
        while frame.f_globals is not names and frame.f_back is not None:
            frame = frame.f_back
        return frame

    def _capturing(self) -> bool:
        if not self._cuda:
            return False
        import torch

        return bool(torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


class _StandIns:
    """The recording names in one module's globals, for as long as at least one thread records."""

    def __init__(self, module: ModuleType, kernels: list[str]) -> None:
        self._taps: dict[int, tuple[LaunchTap, ...]] = {}
        """By thread, the outermost first."""
        self._names = vars(module)
        names = self._names
        kept = {name: names[name] for name in (*kernels, *OP_NAMESPACES, EXTERN, "torch") if name in names}
        self._kept = kept
        for name in kernels:
            names[name] = _Kernel(self, kept[name], name)
        for name in OP_NAMESPACES:
            if name in kept:
                names[name] = _Ops(self, kept[name], str(getattr(kept[name], "name", name)))
        if EXTERN in kept:
            names[EXTERN] = _Extern(self, kept[EXTERN])
        if "torch" in kept:
            names["torch"] = _Torch(self, kept["torch"])

    def enter(self, tap: LaunchTap) -> bool:
        """Record this thread's launches with `tap` as well; False when it does so already."""
        thread = threading.get_ident()
        before = self._taps.get(thread, ())
        if tap in before:
            return False
        self._taps[thread] = (*before, tap)
        return True

    def leave(self, tap: LaunchTap) -> bool:
        """The end of `enter`. True when nobody is left and the real names are back."""
        thread = threading.get_ident()
        left = tuple(other for other in self._taps[thread] if other is not tap)
        if left:
            self._taps[thread] = left
        else:
            del self._taps[thread]
        if self._taps:
            return False
        self._names.update(self._kept)
        return True

    def call(self, name: str, kind: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        taps = self._taps.get(threading.get_ident())
        if taps is None:
            with unseen:
                return function(*args, **kwargs)
        for tap in taps[:0:-1]:
            function = _through(tap, name, kind, function)
        return taps[0].call(name, kind, function, args, kwargs)


def _through(tap: LaunchTap, name: str, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A launch as an outer tap runs it: through the next one."""
    return lambda *args, **kwargs: tap.call(name, kind, function, args, kwargs)


class _StandIn:
    """Something in the module's globals, in the place of what is there; it has the same attributes."""

    def __init__(self, tap: _StandIns, real: Any, name: str = "") -> None:
        self.__dict__.update(_tap=tap, _real=real, _name=name)

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._real, attribute)


class _Kernel(_StandIn):
    """A generated kernel: a plain callable (C++), or an object launched through `.run` (Triton)."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._tap.call(self._name, "kernel", self._real, args, kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return self._tap.call(self._name, "kernel", self._real.run, args, kwargs)


class _Extern(_StandIn):
    """`extern_kernels`: library calls by name."""

    def __getattr__(self, attribute: str) -> Any:
        real = getattr(self._real, attribute)
        if not callable(real):
            return real

        def launch(*args: Any, **kwargs: Any) -> Any:
            return self._tap.call(f"{EXTERN}.{attribute}", "extern", real, args, kwargs)

        return launch


class _Ops(_StandIn):
    """A namespace, packet or overload below `torch.ops`; calling it is a launch."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._tap.call(self._name, "op", self._real, args, kwargs)

    def __getattr__(self, attribute: str) -> Any:
        real = getattr(self._real, attribute)
        return _Ops(self._tap, real, f"{self._name}.{attribute}") if callable(real) else real


class _Torch(_StandIn):
    """`torch` as the generated module sees it; only `torch.ops` is watched."""

    def __getattr__(self, attribute: str) -> Any:
        real = getattr(self._real, attribute)
        return _OpsRoot(self._tap, real) if attribute == "ops" else real


class _OpsRoot(_StandIn):
    """`torch.ops`: each attribute is a namespace."""

    def __getattr__(self, attribute: str) -> Any:
        real = getattr(self._real, attribute)
        # `torch.ops` also holds plain functions such as `load_library`.
        return _Ops(self._tap, real, attribute) if type(real).__name__ == "_OpNamespace" else real
