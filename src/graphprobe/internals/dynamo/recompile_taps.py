"""Taps on recompilation: the guards that failed, as torch finds them, and what their variables were.

No code of the program runs for that.
"""

from __future__ import annotations

import ast
import collections
import dis
import enum
import inspect
import re
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from graphprobe.analysis.recompile_facts import (
    CodeLine,
    FailedGuard,
    ReadGuard,
    Recompile,
    check_from_text,
    root_name,
    tidy,
)
from graphprobe.internals.bus import Advice, Patch, Subscriber, advised
from graphprobe.internals.dynamo.compile_facts import calling_line, frame_name
from graphprobe.internals.dynamo.dynamo_taps import current_compile_id
from graphprobe.internals.dynamo.graph_breaks import whose
from graphprobe.internals.observer import RecompileObserver

MAX_CHARACTERS = 60
_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque, collections.OrderedDict, collections.defaultdict)
_HOLDERS: tuple[Any, ...] = (dict, list, tuple)
_PLAIN = (bool, int, float, complex, str, type(None))

CONVERT_FRAME = "torch._dynamo.convert_frame"
TAP = "recompiles"


class _UnknownError(Exception):
    """The expression leads through something that only the program's code could answer."""


def value_in_frame(check: ReadGuard, f_locals: dict[str, Any], f_globals: dict[str, Any]) -> str | None:
    """The value that the check looked at, as text; None where it cannot be had, or would change something."""
    alias = check.kind == "alias-changed"
    if not check.source or check.kind == "object-freed" or (check.actual is not None and not alias):
        return None
    source = check.source.partition(" and ")[0] if alias else check.source
    try:
        value = _resolve(ast.parse(source, mode="eval").body, f_locals, f_globals)
        return _described(check, value)
    except (_UnknownError, SyntaxError, KeyError, IndexError, TypeError, ValueError, RuntimeError, AttributeError):
        return None


def _resolve(node: ast.expr, f_locals: dict[str, Any], f_globals: dict[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        if node.id == "G" and "G" not in f_locals:
            return f_globals
        return f_locals[node.id]
    if isinstance(node, ast.Subscript):
        holder = _resolve(node.value, f_locals, f_globals)
        key = ast.literal_eval(node.slice)
        for kind in _HOLDERS:
            if isinstance(holder, kind):
                return kind.__getitem__(holder, key)
        raise _UnknownError
    if isinstance(node, ast.Attribute):
        return _attribute(_resolve(node.value, f_locals, f_globals), node.attr)
    raise _UnknownError


def _attribute(owner: Any, name: str) -> Any:
    """Of the instance itself, or a plain value of its class; properties and `__getattr__` are the program's code."""
    if name == "__dict__":
        return object.__getattribute__(owner, "__dict__")
    value = inspect.getattr_static(owner, name)
    slot = isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType)
    if slot and type(owner).__module__ in ("builtins", "functools"):
        return getattr(owner, name)
    if hasattr(type(value), "__get__") and not isinstance(value, types.FunctionType):
        raise _UnknownError
    return value


def _described(check: ReadGuard, value: Any) -> str | None:
    import torch

    if check.kind == "keys-changed":
        return _keys(value)
    if check.dim is not None:
        if not isinstance(value, torch.Tensor):
            return None
        with torch._C.DisableTorchFunctionSubclass():
            return str(int(value.shape[check.dim]))
    if check.kind == "length-changed":
        return str(len(value)) if type(value) in _CONTAINERS else None
    if check.kind == "alias-changed":
        return "Tensor" if isinstance(value, torch.Tensor) else type(value).__name__
    if check.kind == "type-changed":
        return _full_name(type(value)).removeprefix("builtins.")
    if isinstance(value, torch.Tensor):
        return "a tensor"
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value._name_}"
    if isinstance(value, _PLAIN) and type(value) in _PLAIN:
        return _short(repr(value))
    if isinstance(value, torch.dtype | torch.device | torch.memory_format | torch.layout):
        return str(value)
    if isinstance(value, types.FunctionType | types.BuiltinFunctionType | type):
        return value.__qualname__
    return f"a {type(value).__qualname__}"


def _keys(value: Any) -> str | None:
    if not isinstance(value, dict) or len(value) > 20:
        return None
    keys = list(dict.keys(value))
    if not keys:
        return "0 keys"
    return _short(", ".join(map(repr, keys))) if all(type(key) in _PLAIN for key in keys) else None


def _short(text: str) -> str:
    text = re.sub(r"\s+", " ", text)
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"


class _Owner:
    """For whom a version is compiled. Weak: nothing of the program is kept alive."""

    def __init__(self, name: str, value: object, argument: str | None = None) -> None:
        """`argument`: the expression that the function has it under, where it is an argument."""
        self.name = name
        self.argument = argument
        self._reference = weakref.ref(value)

    def same_as(self, other: _Owner | None) -> bool:
        """Whether both are one object, which still exists."""
        return other is not None and self._reference() is not None and self._reference() is other._reference()


class _Pending(threading.local):
    """What is known so far of the compile that is about to begin on this thread."""

    fact: Recompile | None = None
    backend: object = None
    code: types.CodeType | None = None
    owner: _Owner | None = None


class _Taps:
    """The three taps of one observer."""

    def __init__(self, observer: RecompileObserver) -> None:
        self._to = Subscriber(observer)
        self._pending = _Pending()
        # Of each code, for whom its versions were compiled, by compile id.
        self._owners: weakref.WeakKeyDictionary[types.CodeType, dict[str | None, _Owner]] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def patches(self) -> list[Patch]:
        """Called in this order by Dynamo, on one thread, before it traces; the second only when guards have failed."""
        return [
            advised(TAP, CONVERT_FRAME, "compute_cache_size", self._cache_size),
            advised(TAP, CONVERT_FRAME, "get_and_maybe_log_recompilation_reasons", self._reasons),
            advised(TAP, CONVERT_FRAME, "exceeds_recompile_limit", self._limit),
        ]

    def _cache_size(self, frame: Any, *args: Any, **kwargs: Any) -> Advice:
        self._pending.fact = None
        self._quietly(lambda: self._note_owner(frame))
        yield

    def _reasons(self, cache_entries: Any, frame: Any, *args: Any, **kwargs: Any) -> Advice:
        caller = sys._getframe(2)
        backend = args[0] if args else kwargs.get("backend")
        reasons, error = yield
        if isinstance(error, Exception):  # `error_on_recompile`: nothing is compiled, and the message has the reasons
            reasons = re.findall(r"^\s*- (.*)", str(error), flags=re.M)
        self._quietly(lambda: self._begin(reasons or (), frame, backend, caller))
        if error is not None:
            self._quietly(self._tell)

    def _limit(self, cache_size: Any, *args: Any, **kwargs: Any) -> Advice:
        answer, error = yield
        if error is not None:
            return
        self._quietly(self._keep_owner)
        if self._pending.fact is not None:
            self._quietly(lambda: self._tell(cache_size, answer))

    def _quietly(self, call: Callable[[], None]) -> None:
        self._to.tell("a recompilation", call, None)

    def _note_owner(self, frame: Any) -> None:
        self._pending.code = self._pending.owner = None
        self._pending.code, self._pending.owner = frame.f_code, _owner_of(frame)

    def _keep_owner(self) -> None:
        """Once the compile has its id, for the guards of this version that will fail."""
        code, owner = self._pending.code, self._pending.owner
        if code is not None and owner is not None:
            with self._lock:
                self._owners.setdefault(code, {})[current_compile_id()] = owner

    def _begin(self, reasons: Sequence[str], frame: Any, backend: object, caller: types.FrameType) -> None:
        code: types.CodeType = frame.f_code
        config = sys.modules["torch._dynamo.config"]
        named = frame_name(code, frame.f_locals)
        owner = self._pending.owner
        with self._lock:
            versions = dict(self._owners.get(code, {}))
        self._pending.backend = backend
        self._pending.fact = Recompile(
            function=named.name,
            file=named.file,
            line=named.line,
            guards=tuple(_failed_guard(reason, frame, owner, versions) for reason in reasons),
            compile_id=current_compile_id(),
            caller=calling_line(caller),
            thread=threading.current_thread().name,
            limit=getattr(config, "recompile_limit", None),
            accumulated_limit=getattr(config, "accumulated_recompile_limit", None),
            dynamic=getattr(backend, "dynamic", None),
            automatic_dynamic=bool(getattr(config, "automatic_dynamic_shapes", True)),
            first_argument=_first_argument(code) if owner is None or owner.argument is None else owner.argument,
            other_instance=owner is not None
            and owner.argument is not None
            and not any(map(owner.same_as, versions.values())),
            owner=None if owner is None else owner.name,
            free_variables=code.co_freevars,
            time_ns=time.time_ns(),
        )

    def _tell(self, cache_size: Any = None, answer: Any = None) -> None:
        fact, backend = self._pending.fact, self._pending.backend
        self._pending.fact = self._pending.backend = None
        if fact is None:
            return
        exceeded, limit = answer if answer is not None else (False, None)
        changes = {
            "versions": getattr(cache_size, "num_cache_entries_with_same_id_matched_objs", None),
            "all_versions": getattr(cache_size, "total_cache_entries_all_regions", None),
            "limit_hit": str(limit) if exceeded else None,
        }
        self._to.observer.recompiled(msgspec.structs.replace(fact, **changes), backend)


def patches(observer: RecompileObserver) -> list[Patch]:
    """The taps of this module."""
    return _Taps(observer).patches()


def _first_argument(code: types.CodeType) -> str | None:
    return code.co_varnames[0] if code.co_argcount else None


def _has_identity(value: object) -> bool:
    """Whether it is an instance of the program's or of a module: no tensor, no number, no container."""
    torch = sys.modules["torch"]
    if value is None or isinstance(value, torch.Tensor | type | types.ModuleType):
        return False
    return type(value).__module__ != "builtins" and bool(type(value).__weakrefoffset__)


def _owner_of(frame: Any) -> _Owner | None:
    """The instance that a method is called on; else what a decorator's function was made around."""
    code: types.CodeType = frame.f_code
    first = _first_argument(code)
    instance = None if first is None else frame.f_locals.get(first)
    if first is None and code.co_flags & inspect.CO_VARARGS:
        among = code.co_varnames[code.co_kwonlyargcount]
        given = frame.f_locals.get(among)
        first, instance = f"{among}[0]", given[0] if type(given) is tuple and given else None
    if _has_identity(instance):
        return _Owner(_full_name(type(instance)), instance, first)
    around = [frame.f_locals[name] for name in code.co_freevars if name in frame.f_locals]
    wrapped = [_called(value) for value in around]
    named = [(name, value) for name, value in wrapped if name]
    if not named:
        return None
    return _Owner(" and ".join(name for name, _ in named), named[0][1])


def _called(value: object) -> tuple[str, object]:
    """The function or module behind a callable, and its name; no name for anything else."""
    torch = sys.modules["torch"]
    if isinstance(value, types.MethodType):
        value = value.__self__
    if isinstance(value, torch.nn.Module):
        return _full_name(type(value)), value
    return _full_name(value) if isinstance(value, types.FunctionType) else "", value


def _full_name(value: type | types.FunctionType) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _failed_guard(reason: str, frame: Any, owner: _Owner | None, versions: Mapping[str | None, _Owner]) -> FailedGuard:
    entry, _, rest = reason.partition(": ")
    made_for = versions.get(entry)
    text, _, stack = rest.partition("\nUser stack trace:\n")
    check = check_from_text(text)
    where, where_from = _line_of_stack(stack), "torch"
    if where is None:
        where = _line_of_comment(text, frame.f_code)
    if where is None:
        where, where_from = _first_use(check.source, frame.f_code), "first use"
    return FailedGuard(
        entry=entry,
        text=tidy(text),
        where=where,
        where_from=None if where is None else where_from,
        actual=value_in_frame(check, frame.f_locals, frame.f_globals),
        owner=None if made_for is None else made_for.name,
        same_owner=None if owner is None or made_for is None else made_for.same_as(owner),
    )


def _line_of_stack(stack: str) -> CodeLine | None:
    """The innermost line that is not torch's, or else the innermost one."""
    found = re.findall(r'File "(.+?)", line (\d+), in (.+)', stack)
    places = [CodeLine(file, int(line), function) for file, line, function in found]
    own = [place for place in places if whose(place.file) != "torch"]
    return (own or places)[-1] if places else None


def _line_of_comment(text: str, code: types.CodeType) -> CodeLine | None:
    """torch's comment has the last part of the path alone: good for lines of the function's own file."""
    for path, line, function in re.findall(r"# (\S+\.py|<\w+>):(\d+) in (\S+)", text):
        if code.co_filename.endswith(path):
            return CodeLine(code.co_filename, int(line), function)
    return None


def _first_use(source: str, code: types.CodeType) -> CodeLine | None:
    """The first line of the function that reads the variable; None for attributes, which it may read elsewhere."""
    name = root_name(source)
    if name is None or "." in source:
        return None
    line = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        at = getattr(instruction, "positions", None)
        line = getattr(at, "lineno", None) or line
        names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
        if instruction.opname.startswith("LOAD_") and name in names and "CONST" not in instruction.opname:
            return CodeLine(code.co_filename, line, code.co_name)
    return None
