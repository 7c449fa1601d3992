"""Taps on Dynamo's conversion of a frame: what it was given when it failed, and why it failed.

Nothing happens before a failure. Tracing does not run the program's effects, so the arguments are still what they were
when the frame began.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

from graphprobe.internals.bus import Advice, Patch, Subscription, advised
from graphprobe.internals.compiler_settings import changed_values
from graphprobe.internals.unseen import unseen

CONVERT_FRAME = "torch._dynamo.convert_frame"
NOT_TRACING = ("BackendCompilerFailed", "FailOnRecompileLimitHit", "PackageError")
"""Errors of a compile that are none of tracing."""
OURS = re.compile(r"repro_|debug_|log_|replay_|verbose$|cprofile|_|.*cache|recompile_limit|fail_on_recompile")
"""Settings of Dynamo that do not change what is traced, or that hold only while the frame is compiled."""

_SOURCE = re.compile(r"L\['(\w+)'\]((?:\[(?:\d+|'[^']*')\])*)")
_STEP = re.compile(r"\[(\d+|'[^']*')\]")
_FROM_USER = re.compile(r'File "([^"\n]+)", line (\d+), in ([^\n]+)\n?(?: *([^\n]*))?')

ORIGINAL, DISABLED = "_torchdynamo_orig_callable", "_torchdynamo_disable"

REGION = "__marked_compile_region_"


@dataclass(frozen=True)
class FailedFrame:
    """A frame that Dynamo could not trace.

    Attributes:
        code, globals, locals, closure: of the frame, live; `locals` are the arguments.
        error: what was raised.
        fullgraph: whether a graph break was an error.
        suppressed: whether torch keeps the error to itself and runs the frame uncompiled.
        stack: the program's lines as (file, line, function, text), outermost first.
        settings: Dynamo's settings other than the defaults, by name.
        dynamic: tensors that were traced with symbolic sizes because an earlier call had others, with the dimensions.
        unresolved: sources of such tensors that were not found again.
    """

    code: CodeType
    globals: dict[str, Any]
    locals: Mapping[str, Any]
    closure: tuple[Any, ...]
    error: BaseException
    fullgraph: bool
    suppressed: bool
    stack: list[tuple[str, int, str, str]]
    settings: dict[str, Any] = field(default_factory=dict)
    dynamic: list[tuple[Any, list[int]]] = field(default_factory=list)
    unresolved: list[str] = field(default_factory=list)

    @property
    def is_continuation(self) -> bool:
        """Whether Dynamo made the function itself, to go on behind a graph break."""
        return self.code.co_name.startswith("torch_dynamo_resume_in_")


class FrameFailures(Subscription):
    """Tells of each frame that fails to trace while it is installed.

    Args:
        on_failure: gets the frame; what it raises goes to `on_error`, and it is not called again.
        on_error: gets what the observer raised.
    """

    def __init__(self, on_failure: Callable[[FailedFrame], None], on_error: Callable[[Exception], None]) -> None:
        self._on_failure, self._on_error = on_failure, on_error
        super().__init__(
            [
                Patch("frame_failures", CONVERT_FRAME, "_compile", self._make_compile),
                advised("frame_failures", CONVERT_FRAME, "unimplemented", self._unimplemented),
            ]
        )
        self._told: tuple[int, str] | None = None
        self._broken = False

    def _make_compile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def _compile(
            code: Any, globals: Any, locals: Any, builtins: Any, closure: Any, *args: Any, **kwargs: Any
        ) -> Any:
            if isinstance(kwargs.get("skip"), int):
                kwargs["skip"] += 1  # of the stacks that torch logs
            try:
                with unseen:
                    return original(code, globals, locals, builtins, closure, *args, **kwargs)
            except Exception as error:
                one_graph = bool(args[1] if len(args) > 1 else kwargs.get("one_graph"))
                box = getattr(kwargs.get("convert_frame_box"), "error_on_graph_break", None)
                self._tell(code, globals, locals, closure, error, fullgraph=one_graph or bool(box))
                raise

        return _compile

    def _unimplemented(self, *args: Any, **kwargs: Any) -> Advice:
        """Generators are refused before the frame is converted."""
        outer = sys._getframe(2).f_locals
        _, error = yield
        frame, converter = outer.get("frame"), outer.get("self")
        if isinstance(error, Exception) and frame is not None and getattr(converter, "_one_graph", False):
            given = (frame.f_code, frame.f_globals, frame.f_locals, frame.closure)
            self._tell(*given, error, fullgraph=True)

    def _tell(self, code: Any, globals: Any, locals: Any, closure: Any, error: Exception, *, fullgraph: bool) -> None:
        # Builtin exceptions take no weak reference, and one that is kept keeps the program's tensors.
        identity = (id(error), repr(error))
        if self._broken or self._told == identity or not _is_tracing(error):
            return
        try:
            self._told = identity
            dynamic, unresolved = _dynamic(code, locals, closure)
            changed = {name: value for name, value in changed_values("torch._dynamo.config") if not OURS.match(name)}
            frame = (code, globals, dict(locals), tuple(closure or ()))
            suppressed = not fullgraph and _is_suppressed(error)
            told = FailedFrame(*frame, error, fullgraph, suppressed, _user_stack(error), changed, dynamic, unresolved)
            self._on_failure(told)
        except Exception as fault:  # the program must not see our faults
            self._broken = True
            self._on_error(fault)


def asked_by_torch() -> bool:
    """Whether `torch._dynamo.config.replay_record_enabled` is on now."""
    config = sys.modules.get("torch._dynamo.config")
    return bool(getattr(config, "replay_record_enabled", False))


def _is_tracing(error: BaseException) -> bool:
    if any(kind.__name__ in NOT_TRACING for kind in type(error).__mro__):
        return False
    return getattr(error, "gb_type", None) != "Dynamo recompile limit exceeded"


def _is_suppressed(error: BaseException) -> bool:
    exc: Any = sys.modules.get("torch._dynamo.exc")
    config: Any = sys.modules.get("torch._dynamo.config")
    kinds = tuple(filter(None, (getattr(exc, name, None) for name in ("Unsupported", "UserError"))))
    hard = getattr(exc, "UncapturedHigherOrderOpError", ())
    soft = isinstance(error, kinds) and not isinstance(error, hard)
    return soft or bool(getattr(config, "suppress_errors", False))


def _user_stack(error: BaseException) -> list[tuple[str, int, str, str]]:
    """From the exception itself, else from its text, where torch has put it."""
    stack = getattr(error, "real_stack", None)
    if stack:
        return [(entry.filename, entry.lineno or 0, entry.name, entry.line or "") for entry in stack]
    _, _, behind = str(error).partition("from user code:")
    found = [(m[1], int(m[2]), m[3].strip(), (m[4] or "").strip()) for m in _FROM_USER.finditer(behind)]
    if found:
        return found
    summary = getattr(error, "innermost_user_frame_summary", None)
    if isinstance(summary, traceback.FrameSummary):
        return [(summary.filename, summary.lineno or 0, summary.name, summary.line or "")]
    return []


def _dynamic(code: CodeType, locals: Mapping[str, Any], closure: Any) -> tuple[list[tuple[Any, list[int]]], list[str]]:
    """What Dynamo has learnt from earlier calls of the function; it is not in the arguments themselves."""
    pgo: Any = sys.modules.get("torch._dynamo.pgo")
    if pgo is None:
        return [], []
    states, key = pgo.get_code_state(), _code_id(pgo, code, closure)
    if key not in states:
        return [], []
    found, unresolved = [], []
    for name, entry in dict(states[key].automatic_dynamic).items():
        sizes = entry.size if isinstance(entry.size, tuple) else ()
        dims = [i for i in range(len(sizes)) if entry.is_size_dynamic(i)]
        value = _value_at(name, locals)
        if not dims:
            if isinstance(value, int | float) and entry.scalar is pgo.auto_dynamic:
                unresolved.append(f"{name} (a number)")
            continue
        if value is None:
            unresolved.append(f"{name}, dimensions {dims}")
        else:
            found.append((value, dims))
    return found, unresolved


def _code_id(pgo: Any, code: CodeType, closure: Any) -> Any:
    try:
        return pgo.CodeId.make(code, closure)
    except TypeError:  # before torch 2.13 it took the code alone
        return pgo.CodeId.make(code)


def _value_at(source: str, locals: Mapping[str, Any]) -> Any:
    """The tensor at `L['x'][0]`, None where the way there is longer than plain containers."""
    match = _SOURCE.fullmatch(source)
    if match is None or match[1] not in locals:
        return None
    value = locals[match[1]]
    for step in _STEP.findall(match[2]):
        key: Any = step[1:-1] if step.startswith("'") else int(step)
        try:
            value = value[key] if type(value) in (list, tuple, dict) else None
        except LookupError:
            return None
    return value


def uncompiled(value: Any) -> Any:
    """What was given to `torch.compile`, where the value came out of it; else the value."""
    for _ in range(8):
        if type(value) is FunctionType:
            attributes = vars(value)
            if ORIGINAL not in attributes or attributes.get(DISABLED):
                return value
            value = attributes[ORIGINAL]
        elif _is_compiled_module(value):
            value = value._orig_mod
        else:
            return value
    return value


def _is_compiled_module(value: Any) -> bool:
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    kind = getattr(eval_frame, "OptimizedModule", None)
    return inspect.isclass(kind) and type(value) is kind


def marked_function(function: FunctionType) -> tuple[Callable[..., Any], Any, dict[str, Any]] | None:
    """`torch.compiler.disable` or `nested_compile_region`, the function inside, and what else it was given; None of
    another function."""
    import torch  # this module is imported before it

    attributes = vars(function)
    inner = attributes.get(f"{REGION}fn__")
    if inner is not None:
        marks: Any = torch.compiler.nested_compile_region
        defaults = {name: parameter.default for name, parameter in inspect.signature(marks).parameters.items()}
        kept = {name: f"{REGION}{'config' if name == 'options' else name}__" for name in defaults}
        given = {name: getattr(inner, attribute, defaults[name]) for name, attribute in kept.items() if name != "fn"}
        return marks, inner, {name: value for name, value in given.items() if value is not defaults[name]}
    if not attributes.get(DISABLED) or ORIGINAL not in attributes:
        return None
    settings: dict[str, Any] = {"recursive": bool(attributes.get("_torchdynamo_disable_recursive", True))}
    if attributes.get("_torchdynamo_disable_msg") is not None:
        settings["reason"] = attributes["_torchdynamo_disable_msg"]
    return torch.compiler.disable, attributes[ORIGINAL], settings
