"""Says what Dynamo compiles, by its user's name, and what torch knows of compiles: guards, times, graph breaks."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, FrameType
from typing import Any, NamedTuple

from graphprobe.analysis.breaks_text import plain_name
from graphprobe.analysis.recompile_facts import CodeLine
from graphprobe.internals.names import require

PURPOSE = "explaining a compile"

GENERATOR = "Attempt to trace generator"
"""What Dynamo says of each generator that it is called with."""

RESUME_PREFIX = "torch_dynamo_resume_in_"
"""How the names of the continuations behind graph breaks begin."""

COMPILE = ("torch._dynamo.convert_frame", "_compile")
"""Dynamo's function whose arguments `code` and `locals` are the frame that it compiles."""

_CALLS = ("forward", "__call__", "_call_impl", "_wrapped_call_impl")
_OWN_FRAME = "torch/_dynamo/external_utils.py"
_MOST = 20
"""Decorators around one function that are looked through."""


def guard_reader() -> Callable[[], list[dict[str, Any]]]:
    """Reads the guards that the compile under way on this thread has by now; call the reader once it has ended.

    Only then do guards have their code. Guards that torch adds after the backend has returned are not among them.
    """
    tracing = require("torch._guards", "TracingContext", purpose=PURPOSE).try_get()
    guards = getattr(getattr(tracing, "guards_context", None), "dynamo_guards", None)
    kept = sorted(guards or ())  # torch empties its own set at the end of the compile
    return lambda: [described_guard(guard) for guard in kept]


def described_guard(guard: Any) -> dict[str, Any]:
    """A guard as documents have it."""
    stack = getattr(guard, "user_stack", None)
    kind = guard.create_fn_name() if hasattr(guard, "create_fn_name") else None
    return {
        "source": str(guard.name() if callable(guard.name) else guard.name),
        "kind": None if kind is None else str(kind),
        "code": [str(code) for code in guard.code_list or ()],
        "where": f"{stack[-1].filename}:{stack[-1].lineno}" if stack else None,
    }


def compile_times_s() -> dict[str, float]:
    """Seconds spent by now in each phase of compiling, over the whole process."""
    compile_times = require("torch._dynamo.utils", "compile_times", purpose=PURPOSE)
    names, seconds = compile_times(repr="csv", aggregate=True)
    return {str(name): float(value) for name, value in zip(names, seconds, strict=True)}


def graphs_made() -> int:
    """Graphs that Dynamo has made by now, over the whole process."""
    counters = require("torch._dynamo.utils", "counters", purpose=PURPOSE)
    return int(counters["stats"]["unique_graphs"])


def breaks_made() -> int:
    """Graph breaks by now, over the whole process."""
    counters = require("torch._dynamo.utils", "counters", purpose=PURPOSE)
    return sum(map(int, counters.get("graph_break", {}).values()))


def given_up() -> dict[str, int]:
    """What Dynamo gave up a whole function for by now, over the whole process, by reason.

    Generators are left out: Dynamo meets them in DistributedDataParallel, too, where it does not even try the module.
    """
    counters = require("torch._dynamo.utils", "counters", purpose=PURPOSE)
    reasons = counters.get("unimplemented", {}).items()
    return {str(reason): int(count) for reason, count in reasons if not str(reason).startswith(GENERATOR)}


def calls_of(gm: Any) -> Iterator[Any]:
    """The nodes of an FX graph that call something, those of a nested graph where it is first named."""
    seen: set[str] = set()
    for node in gm.graph.nodes:
        if node.op in ("call_function", "call_method", "call_module"):
            yield node
        elif node.op == "get_attr" and node.target not in seen:
            seen.add(node.target)
            child = getattr(gm, node.target, None)
            if hasattr(child, "graph"):
                yield from calls_of(child)


def begins_at(calls: Iterable[Any]) -> str | None:
    """`file:line in function` of the first of a graph's calls; of a graph that torch's code alone has made, the line of
    the program that calls it, which is asked for while Dynamo compiles."""
    made = next(filter(None, map(place_of, calls)), None)
    if made is not None:
        return made
    caller = calling_line(sys._getframe(1))
    return None if caller is None else str(caller)


def on_cpu(gm: Any) -> bool:
    """Whether all the tensors that a graph of Dynamo's names are on the CPU."""
    values = [node.meta.get("example_value", node.meta.get("val")) for node in gm.graph.nodes]
    devices = {value.device.type for value in values if hasattr(value, "device")}
    return bool(devices) and devices == {"cpu"}


def place_of(node: Any) -> str | None:
    """`file:line in function` of the program's innermost line that made the node, None when it is not known."""
    trace = (getattr(node, "stack_trace", None) or "").splitlines()
    lines = [line.strip() for line in trace if line.strip().startswith("File ")]
    if not lines:
        return None
    return lines[-1].removeprefix("File ").replace('"', "").replace(", line ", ":").replace(", in ", " in ")


class FrameName(NamedTuple):
    """What is compiled.

    Attributes:
        name: `LlamaForCausalLM` of its `forward`, `Net.encode` of another method, else the function's; of what follows
            a graph break, in Dynamo's form: `torch_dynamo_resume_in_LlamaForCausalLM_at_12`.
        file, line: where the method or the function is defined, and not the decorator around it.
        module: the instance; None for a function.
        given: the name of the code object itself: `wrapper` of a decorator.
    """

    name: str
    file: str
    line: int
    module: Any = None
    given: str = ""

    @property
    def plain(self) -> str:
        """The name, also of a continuation."""
        return plain_name(self.name)

    @property
    def resumed(self) -> bool:
        """Whether it is what follows a graph break."""
        return self.given.startswith(RESUME_PREFIX)


def frames_from(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and those that led to it, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def compiled_now() -> FrameName | None:
    """What Dynamo is compiling on this thread; None where it is not, or where this torch keeps it elsewhere."""
    for frame in frames_from(sys._getframe(1)):
        if frame.f_code.co_name == COMPILE[1] and frame.f_globals.get("__name__") == COMPILE[0]:
            code, given = frame.f_locals.get("code"), frame.f_locals.get("locals")
            return frame_name(code, given) if isinstance(code, CodeType) and isinstance(given, Mapping) else None
    return None


def frame_name(code: CodeType, given: Mapping[str, Any]) -> FrameName:
    """The name of a frame that runs `code` with the locals `given`."""
    own = plain_name(code.co_name)
    resumed = own != code.co_name
    name, made, module = own, code, None
    first = _first(code, given, resumed)
    method = None if first is None else _method(first, code, own, resumed)
    if method is not None:
        module, (attribute, made) = first, method
        kind = type(module).__name__
        name = kind if attribute in _CALLS else f"{kind}.{attribute}"
    elif not resumed:
        function = _undecorated(code, given)
        name, made = (own, code) if function is None else (function.__name__, function.__code__)
        if function is None and _is_dynamos_own(code):
            name = getattr(given.get("fn"), "__name__", own)
    if resumed:
        name = f"{RESUME_PREFIX}{name}_at_{code.co_name.rpartition('_at_')[2]}"
    return FrameName(name, made.co_filename, made.co_firstlineno, module, code.co_name)


def calling_line(frame: FrameType | None) -> CodeLine | None:
    """The program's line that made the call, going out from inside of torch; a library's only where there is none."""
    nearest: CodeLine | None = None
    for outer in frames_from(frame):
        module = str(outer.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in ("torch", "graphprobe", "contextlib", "functools", "threading"):
            code = outer.f_code
            place = CodeLine(code.co_filename, outer.f_lineno, code.co_name)
            if not re.search(r"[/\\](?:site|dist)-packages[/\\]|^<", code.co_filename) or module == "__main__":
                return place
            nearest = nearest or place
    return nearest


def _first(code: CodeType, given: Mapping[str, Any], resumed: bool) -> Any:
    """The module that the frame's method belongs to, if it is a method of one."""
    if _is_dynamos_own(code):
        first = given.get("fn")
        first = getattr(first, "__self__", first)
    elif resumed:
        first = given.get("self", _self_of_caller(code))
    elif code.co_argcount:
        first = given.get(code.co_varnames[0])
    elif code.co_flags & inspect.CO_VARARGS:
        rest = given.get(code.co_varnames[code.co_kwonlyargcount])
        first = rest[0] if isinstance(rest, tuple) and rest else None
    else:
        first = None
    modules = sys.modules.get("torch.nn")
    return first if modules is not None and isinstance(first, modules.Module) else None


def _self_of_caller(code: CodeType) -> Any:
    """Of a continuation that uses its `self` no more: that of the function that calls it, which it is the rest of."""
    own = plain_name(code.co_name)
    for frame in frames_from(sys._getframe(1)):
        same = frame.f_code.co_filename == code.co_filename and plain_name(frame.f_code.co_name) == own
        if same and "self" in frame.f_locals:
            return frame.f_locals["self"]
    return None


def _method(module: Any, code: CodeType, own: str, resumed: bool) -> tuple[str, CodeType] | None:
    """Which method of the module a frame runs, and the code of its definition; None for a function that is handed one.

    Two methods behind one decorator have one code object: then it is taken for `forward`.
    """
    inherited = (name for kind in type(module).__mro__ for name in vars(kind))
    for name in dict.fromkeys((*_CALLS[:1], own, *module.__dict__, *inherited)):
        inherits = name not in module.__dict__
        chain = list(_chain(inspect.getattr_static(type(module), name, None) if inherits else module.__dict__[name]))
        if any(one.__code__ is code for one in chain):
            return name, chain[-1].__code__
    if _is_dynamos_own(code):
        called = next(iter(list(_chain(type(module).forward))[-1:]), None)
        return None if called is None else ("forward", called.__code__)
    if resumed or code.co_varnames[:1] == ("self",):
        return (own if hasattr(type(module), own) else _CALLS[0], code)
    return None


def _undecorated(code: CodeType, given: Mapping[str, Any]) -> Any:
    """The function that was given to `torch.compile`, if `code` is that of a decorator around it."""
    if _is_dynamos_own(code):
        return next(iter(list(_chain(given.get("fn")))[-1:]), None)
    for frame in frames_from(sys._getframe(1)):
        if frame.f_globals.get("__name__") == "torch._dynamo.eval_frame" and "fn" in frame.f_locals:
            chain = list(_chain(frame.f_locals["fn"]))
            return chain[-1] if any(one.__code__ is code for one in chain) else None
    return None


def _chain(function: Any) -> Iterator[Any]:
    """The function and those that it wraps, the innermost last, as far as decorators say."""
    for _ in range(_MOST):
        if isinstance(function, functools.partial):
            function = function.func
        function = getattr(function, "__func__", function)
        if not isinstance(getattr(function, "__code__", None), CodeType):
            return
        yield function
        function = function.__dict__.get("__wrapped__")


def _is_dynamos_own(code: CodeType) -> bool:
    """Whether it is the frame that Dynamo puts around a module or a function of torch's."""
    return code.co_filename.replace("\\", "/").endswith(_OWN_FRAME)


def under_compile() -> tuple[tuple[str, ...], int]:
    """Names of what Dynamo is compiling on this thread: class of the module or the function, and longer; empty outside
    Dynamo. And the identity of the module whose method it is; 0 for a function."""
    named = compiled_now()
    if named is None:
        return (), 0
    if named.module is not None:
        kind = type(named.module)
        return (kind.__name__, f"{kind.__module__}.{kind.__qualname__}", named.given), id(named.module)
    name = named.plain
    return (name if name.isidentifier() else "function", name, named.given), 0
