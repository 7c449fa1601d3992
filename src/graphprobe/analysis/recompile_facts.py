"""Records the guards that failed at a recompilation, and parses torch's words for them: checked, expected, found."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

import msgspec

from graphprobe.records import Int64

_TENSOR = re.compile(
    r"tensor '(?P<source>.+)' (?P<what>size|stride|dtype|rank|requires_grad|dispatch key set) mismatch"
    r"(?: at index (?P<dim>\d{1,9}))?\. expected (?P<rest>.*)",
    re.S,
)
_PAIR = re.compile(r"(?P<expected>DispatchKeySet\([^)]*\)|[\w.-]+?), actual (?P<actual>DispatchKeySet\([^)]*\)|-?\w+)")
_DEVICE_INDEX = re.compile(
    r"(?:tensor '(?P<source>.+?)' )?.*device index.*?(?P<expected>-?\d+)\D+(?P<actual>-?\d+)", re.I
)
_NO_TENSOR = re.compile(
    r"expected type of '(?P<source>.+)' to be (?:a tensor type, '|<class '(?P<wanted>.+?)'>,) "
    r"but found <class '(?P<found>.+?)'>"
)
_FREED = re.compile(r"Cache line invalidated because (?P<source>.+) got deallocated")
_OBJECT = re.compile(r"___check_(?P<what>obj|type)_id\((?P<source>.+), \d+\), type=(?P<type><.*>)$")
_DIMS = re.compile(r"(?P<source>[\w.\[\]'\"]+)\.(?P<what>size|stride)\(\)\[(?P<dim>\d{1,9})\]")
_LENGTH = re.compile(r"(?:not )?(?:len|___tuple_iterator_len)\((?P<source>.+)\)(?: (?P<op>==|!=) (?P<value>\d+))?$")
_KEYS = (
    re.compile(
        r"list\((?:dict\.keys\((?P<source>.+?)\)|(?P<view>.+?)\.keys\(\))\)(?:\[(?P<index>\d+)\])? == (?P<value>.+)$"
    ),
    re.compile(r"(?P<no>not )?___dict_contains\((?P<value>.+?), (?P<source>.+)\)$"),
    re.compile(r"(?P<no>not )?set\.__contains__\((?P<source>.+), (?P<value>.+)\)$"),
    re.compile(r"KeyError on (?P<source>.+)\[(?P<value>[^\[\]]+)\]$"),
)
_ATTRIBUTE = re.compile(r"(?P<no>not )?hasattr\((?P<source>.+), (?P<value>'.+')\)$")
_NONE = re.compile(r"(?P<source>.+) is (?P<no>not )?None$")
_SAME = re.compile(r"(?P<source>[^ ]+) is (?P<other>[^ ]+)$")
_COMPARED = re.compile(r"(?:<=?|>=?|!=) | % ")
_EQUAL = re.compile(r"(?P<source>.+?) == (?P<value>.+)$", re.S)
_GLOBAL_STATE = re.compile(r"GLOBAL_STATE changed: (?P<names>.*)", re.S)

_DEVICES = frozenset(
    "CPU CUDA HIP XLA MPS IPU XPU HPU VE Lazy MTIA MAIA PrivateUse1 PrivateUse2 PrivateUse3 Meta FPGA Vulkan".split()
)
_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "ComplexHalf": "complex32",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}
_TENSOR_KINDS = {
    "size": "size-changed",
    "stride": "stride-changed",
    "dtype": "dtype-changed",
    "rank": "rank-changed",
    "requires_grad": "requires-grad-changed",
}


class CodeLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the program; `function` is the one it lies in."""

    file: str
    line: Int64
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f" in {self.function}" if self.function else "")


class FailedGuard(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why one compiled version of the function did not fit the call.

    Attributes:
        entry: compile id of that version.
        text: the first guard of it that failed, in torch's words.
        where: the program's line that made the guard necessary.
        where_from: `torch` when torch knew the line; `first use` when it is the first line that reads the variable.
        actual: the value that the call came with, as text; None where it could not be read without running code.
        owner: for whom that version was compiled, as `Recompile.owner`; None where that was not noted.
        same_owner: it was the very object that this call is for; None where neither has one.
    """

    entry: str
    text: str
    where: CodeLine | None = None
    where_from: str | None = None
    actual: str | None = None
    owner: str | None = None
    same_owner: bool | None = None


class Recompile(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One call that no compiled version of its function fitted.

    Attributes:
        compile_id: torch's id of the compile that followed; of the one that was refused when a limit was hit.
        function, file, line: the function, and the line of its `def`.
        guards: one for each compiled version that there was, the latest used first.
        caller: the program's line that called it.
        thread: name of the thread.
        versions, limit: compiled versions before this one, and how many torch allows (`recompile_limit`).
        all_versions, accumulated_limit: the same over all regions of `isolate_recompiles`.
        limit_hit: the limit that was reached, so that this call ran uncompiled or raised; None otherwise.
        dynamic: as `torch.compile` was told.
        automatic_dynamic: whether torch makes a size dynamic after its first change.
        first_argument: name of the function's first argument, such as `self`; `args[0]` where it has `*args` alone.
        other_instance: that argument is an object for which nothing had been compiled yet.
        owner: the class of that argument where it is an instance of the program's; else the functions or modules that
            the function takes from around it, as a decorator does. None where it has neither.
        free_variables: names that the function takes from an enclosing function.
        time_ns: wall clock, since the epoch.
    """

    function: str
    file: str
    line: Int64
    guards: tuple[FailedGuard, ...] = ()
    compile_id: str | None = None
    caller: CodeLine | None = None
    thread: str = ""
    versions: Int64 | None = None
    limit: Int64 | None = None
    all_versions: Int64 | None = None
    accumulated_limit: Int64 | None = None
    limit_hit: str | None = None
    dynamic: bool | None = None
    automatic_dynamic: bool = True
    first_argument: str | None = None
    other_instance: bool = False
    owner: str | None = None
    free_variables: tuple[str, ...] = ()
    time_ns: Int64 = 0


class ReadGuard(msgspec.Struct, frozen=True):
    """A failed guard.

    Attributes:
        kind: a stable slug, e.g. `size-changed`; `recompile_remedies.REMEDIES` lists them.
        source: the expression that was looked at, `''` for the state of the process.
        dim: dimension of the tensor, for sizes and strides; position of a key.
        expected: what the compiled version was made for, as text.
        actual: what came, as far as torch says it.
        condition: for conditions on sizes, the condition.
        parameter: the tensor is a parameter or buffer of a module.
        static_module_int: torch says that it keeps integers of modules static.
    """

    kind: str
    source: str = ""
    dim: int | None = None
    expected: str | None = None
    actual: str | None = None
    condition: str | None = None
    parameter: bool = False
    static_module_int: bool = False


def check_from_text(text: str) -> ReadGuard:
    """Read one guard; of a kind that is not known, `other`."""
    code = guard_code(text)
    readers: tuple[Callable[[str, str], ReadGuard | None], ...]
    readers = (_fixed, _tensor, _state, _identity, _size_condition, _container, _value)
    for read in readers:
        check = read(code, text)
        if check is not None:
            return check
    return ReadGuard("other", condition=code)


def guard_code(text: str) -> str:
    """The guard itself, without torch's comment on the program's line and without its hint."""
    return re.split(r"\s{2,}# | \(HINT: ", text.strip(), maxsplit=1)[0].strip()


def tidy(text: str) -> str:
    """The guard on one line, without the spaces that torch lines its comments up with; two remain before a comment."""
    return re.sub(r" {3,}", "  ", " ".join(text.strip().splitlines()))


def _fixed(code: str, text: str) -> ReadGuard | None:
    if code.startswith("BACKEND_MATCH failure"):
        return ReadGuard("backend-changed")
    if code.startswith("Unexpected recompilation"):
        return ReadGuard("unexplained")
    if "_dynamo_dim_marking" in code or re.search(r"'_dynamo_\w+_(?:indices|range)'", code):
        return ReadGuard("dynamic-mark-changed")
    if code.startswith("Duplicate tensors found"):
        names = re.findall(r"[\"']([^\"',]+)[\"']", code.partition(":")[2])
        return ReadGuard("alias-changed", " and ".join(names), expected="different tensors", actual="one tensor")
    freed = _FREED.match(code)
    if freed is not None:
        return ReadGuard("object-freed", _local(freed["source"]))
    return None


def _tensor(code: str, text: str) -> ReadGuard | None:
    found = _TENSOR.match(code)
    if found is not None:
        return _tensor_mismatch(found, text)
    if "device index" in code:
        device = _DEVICE_INDEX.match(code)
        if device is not None:
            return ReadGuard("device-changed", device["source"] or "", None, device["expected"], device["actual"])
    other = _NO_TENSOR.match(code)
    if other is None:
        return None
    found_type, wanted = other["found"], other["wanted"]
    expected = "a tensor" if wanted in (None, "torch.Tensor") else wanted
    if found_type == "NoneType":
        return ReadGuard("none-changed", other["source"], None, expected, "None")
    plain = found_type in ("int", "float", "bool", "str", "list", "tuple", "dict", "complex")
    return ReadGuard("type-changed" if plain else "tensor-class-changed", other["source"], None, expected, found_type)


def _tensor_mismatch(found: re.Match[str], text: str) -> ReadGuard:
    source, what = found["source"], found["what"]
    dim = None if found["dim"] is None else int(found["dim"])
    parameter = "Guard failed on a parameter" in text or "._parameters[" in source
    if what == "requires_grad":
        grad = found["rest"].startswith("requires_grad=1")
        return ReadGuard("requires-grad-changed", source, None, str(grad), str(not grad), parameter=parameter)
    pair = _PAIR.match(found["rest"])
    expected, actual = (None, None) if pair is None else (pair["expected"], pair["actual"])
    if what == "dtype":
        expected, actual = (None if name is None else _DTYPES.get(name, name) for name in (expected, actual))
    if what == "dispatch key set":
        return _dispatch_keys(source, expected or "", actual or "")
    return ReadGuard(_TENSOR_KINDS[what], source, dim, expected, actual, parameter=parameter)


def _dispatch_keys(source: str, expected: str, actual: str) -> ReadGuard:
    before, after = (set(re.findall(r"\w+", keys.partition("(")[2])) for keys in (expected, actual))
    devices = [", ".join(sorted(keys & _DEVICES)).lower() for keys in (before, after)]
    if devices[0] != devices[1]:
        return ReadGuard("device-changed", source, None, devices[0], devices[1])
    lost, gained = (", ".join(sorted(keys)) for keys in (before - after, after - before))
    if lost.startswith("Autograd") and not gained:
        return ReadGuard("tensor-state-changed", source, None, "an ordinary tensor", "an inference tensor")
    if gained.startswith("Autograd") and not lost:
        return ReadGuard("tensor-state-changed", source, None, "an inference tensor", "an ordinary tensor")
    sides = (f"without {gained}", f"with {gained}") if gained else (f"with {lost}", f"without {lost}")
    return ReadGuard("tensor-state-changed", source, None, *sides)


def _state(code: str, text: str) -> ReadGuard | None:
    found = _GLOBAL_STATE.match(code)
    if found is not None:
        names = found["names"].split()
        for slug, start in (("grad-mode-changed", "grad_mode"), ("autocast-changed", "autocast")):
            if any(name.startswith(start) for name in names):
                return ReadGuard(slug, condition=" ".join(names))
        return ReadGuard("global-state-changed", condition=" ".join(names))
    if code.startswith("___check_torch_function_mode_stack"):
        return ReadGuard("function-mode-changed")
    if "CURRENT_DEVICE" in code:
        return ReadGuard("global-state-changed", condition="default_device")
    return None


def _identity(code: str, text: str) -> ReadGuard | None:
    found = _OBJECT.match(code)
    if found is not None:
        source, type_name = found["source"], _type_name(found["type"])
        if found["what"] == "type":
            return ReadGuard("type-changed", source, None, type_name)
        function = type_name in ("function", "builtin_function_or_method", "code", "method")
        function = function or source.endswith(".__code__")  # to torch 2.12 its "type" is the code object itself
        # Of what is compared by identity, torch keeps the type alone: no value that could be met again.
        return ReadGuard("function-changed" if function else "object-changed", source.removesuffix(".__code__"))
    none = _NONE.match(code)
    if none is not None:
        return ReadGuard("none-changed", none["source"], None, "not None" if none["no"] else "None")
    same = _SAME.match(code)
    if same is not None:
        return ReadGuard(
            "alias-changed", f"{same['source']} and {same['other']}", None, "one object", "different objects"
        )
    return None


def _size_condition(code: str, text: str) -> ReadGuard | None:
    """A guard of the shape environment: 0/1 specialisation, or a condition that the program's code asked for."""
    dims = list(_DIMS.finditer(code))
    if not dims:
        return None
    first = dims[0]
    lower = re.match(r"2 <= (?P<sized>.+?\.size\(\)\[\d+\])(?P<more> .*)?$", code)
    kind = "size-condition"
    if lower is not None and (lower["more"] is None or "0/1 specialization" in text):
        kind = "size-zero-one" if lower["more"] is None else "size-bounds"
    if len(dims) > 1 and "duck sizing" in text:
        kind = "sizes-equal"
    return ReadGuard(kind, first["source"], int(first["dim"]), condition=code)


def _container(code: str, text: str) -> ReadGuard | None:
    length = _LENGTH.match(code)
    if length is not None:
        if length["op"] == "!=":  # of a dict, whose keys are compared besides
            return ReadGuard("keys-changed", length["source"], None, counted_keys(int(length["value"])))
        return ReadGuard("length-changed", length["source"], None, length["value"] or "0")
    for pattern in _KEYS:
        found = pattern.match(code)
        if found is not None:
            groups = found.groupdict()
            source = groups.get("source") or groups.get("view") or ""
            if pattern is _KEYS[0]:
                index = groups["index"]
                return ReadGuard(
                    "keys-changed", source, None if index is None else int(index), groups["value"].strip("[]")
                )
            sides = (f"with {groups['value']}", f"without {groups['value']}")
            return ReadGuard("keys-changed", source, None, *(reversed(sides) if groups.get("no") else sides))
    attribute = _ATTRIBUTE.match(code)
    if attribute is not None:
        name = attribute["value"].strip("'")
        sides = ("absent", "present") if attribute["no"] else ("present", "absent")
        return ReadGuard("attribute-changed", f"{attribute['source']}.{name}", None, *sides)
    empty = re.match(r"not (?P<source>[\w.\[\]'\"]+)$", code)
    return None if empty is None else ReadGuard("length-changed", empty["source"], None, "0")


def counted_keys(number: int) -> str:
    """The keys of a dict of which no more is known than how many there are."""
    return "1 key" if number == 1 else f"{number} keys"


def _value(code: str, text: str) -> ReadGuard | None:
    if _COMPARED.search(code):
        name = re.search(r"[A-Za-z_][\w.\[\]'\"]*", code)
        return ReadGuard("value-condition", "" if name is None else name[0], condition=code)
    found = _EQUAL.match(code)
    if found is None:
        return None
    source, expected = found["source"], found["value"]
    hint = "integer attributes of the nn.Module" in text
    return ReadGuard(_value_kind(source, expected), source, None, expected, static_module_int=hint)


def _value_kind(source: str, expected: str) -> str:
    if source.startswith("G["):
        return "global-changed"
    if source.endswith(".training"):
        return "training-mode-changed"
    if "." in source:
        return "attribute-changed"
    try:
        value = ast.literal_eval(expected)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return "constant-changed"
    kinds = {bool: "bool-changed", int: "int-changed", float: "float-changed", str: "string-changed"}
    return kinds.get(type(value), "constant-changed")


def _type_name(text: str) -> str:
    found = re.search(r"'(.+?)'", text)
    return text if found is None else found[1]


def _local(source: str) -> str:
    return re.sub(r"L\[['\"](.*?)['\"]\]", r"\1", source)


def readable(source: str) -> str:
    """The expression as the program would write it: `self._modules['l']._parameters['weight']` is `self.l.weight`."""
    text = re.sub(r"\._(?:modules|parameters|buffers)\[['\"](\w+)['\"]\]", r".\1", source)
    text = re.sub(r"\.__dict__\[['\"](\w+)['\"]\]", r".\1", text)
    text = re.sub(r"^G\[['\"](?:__import_)?(\w+)['\"]\]", r"\1", text)
    text = re.sub(r"___from_numpy\((.+)\)", r"\1", text)
    return re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", text)


def root_name(source: str) -> str | None:
    """The variable that the expression begins with; None for globals and for what is no variable."""
    found = re.match(r"(?:___from_numpy\()?([A-Za-z_]\w*)", source)
    return None if found is None or source.startswith("G[") else found[1]
