"""Records the guards that failed at a recompilation, and parses torch's words for them: checked, expected, found."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from graphprobe.records import Int64

_DEVICES = frozenset(
    "CPU CUDA HIP XLA MPS IPU XPU HPU VE Lazy MTIA MAIA PrivateUse1 PrivateUse2 PrivateUse3 Meta FPGA Vulkan".split()
)
_DTYPES = dict(
    pair.split(":")
    for pair in "Float:float32 Double:float64 Half:float16 BFloat16:bfloat16 Long:int64 Int:int32 Short:int16 "
    "Char:int8 Byte:uint8 Bool:bool ComplexHalf:complex32 ComplexFloat:complex64 ComplexDouble:complex128".split()
)

_MISMATCH = r"tensor '(?P<source>.+)' {} mismatch"
_GRAD = _MISMATCH.format("requires_grad")
_PAIR = (
    _MISMATCH + r"(?: at index (?P<dim>\d{{1,9}}))?\. expected (?:(?P<expected>[\w.-]+?), actual (?P<actual>-?\w+))?"
)
_NO_TENSOR = (
    r"expected type of '(?P<source>.+)' to be (?:a tensor type, '|<class '(?:torch\.Tensor|(?P<expected>.+?))'>,) "
    r"but found <class '"
)
_STATE = r"GLOBAL_STATE changed: "
_DIM = r"(?P<source>[\w.\[\]'\"]+)\.(?:size|stride)\(\)\[(?P<dim>\d{1,9})\]"
_LENGTH = r"(?:not )?(?:len|___tuple_iterator_len)\((?P<source>.+)\)"
_KEYS_ARE = r"(?:\[(?P<dim>\d+)\])? == \[*(?P<expected>.+?)\]*$"
_CONTAINS = (
    r"___dict_contains\((?P<key>.+?), (?P<source>.+)\)$",
    r"set\.__contains__\((?P<source>.+), (?P<key>.+)\)$",
)
_IS = r" == (?P<expected>{})$"


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
        kind: a stable slug, e.g. `size-changed`; `recompile_rules.RULES` lists them.
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


class GuardRule(msgspec.Struct, frozen=True):
    """How torch words one kind of guard.

    Attributes:
        kind: as in `ReadGuard`.
        pattern: what the guard begins with; its groups are fields of `ReadGuard`.
        expected, actual, source: these fields where no group has their name, with groups in braces.
        condition: the same.
        says: what torch's comment must contain.
    """

    kind: str
    pattern: str
    expected: str | None = None
    actual: str | None = None
    source: str = ""
    condition: str | None = None
    says: str = ""

    def read(self, code: str, text: str) -> ReadGuard | None:
        """The guard `code`, of which torch's whole text is `text`; None where it is another kind."""
        found = re.match(self.pattern, code, re.DOTALL) if self.says in text else None
        if found is None:
            return None
        groups = {name: value for name, value in found.groupdict().items() if value is not None}
        written = {name: getattr(self, name) for name in ("source", "expected", "actual", "condition")}
        filled = {name: value.format(**groups) for name, value in written.items() if value is not None}
        fields: dict[str, Any] = filled | {name: value for name, value in groups.items() if name in written}
        if "condition" in fields:
            fields["condition"] = " ".join(fields["condition"].split())
        on_parameter = "Guard failed on a parameter" in text or "._parameters[" in fields["source"]
        return ReadGuard(
            self.kind,
            dim=int(groups["dim"]) if "dim" in groups else None,
            parameter=code.startswith("tensor '") and on_parameter,
            static_module_int="integer attributes of the nn.Module" in text,
            **fields,
        )


# fmt: off
GUARDS: tuple[GuardRule, ...] = (
    GuardRule("backend-changed", r"BACKEND_MATCH failure"),
    GuardRule("unexplained", r"Unexpected recompilation"),
    GuardRule("dynamic-mark-changed", r".*_dynamo_dim_marking|.*'_dynamo_\w+_(?:indices|range)'"),
    GuardRule("alias-changed", r"""Duplicate tensors found.*?["'](?P<one>[^"',]+)["'].*?["'](?P<other>[^"',]+)["']""",
        "different tensors", "one tensor", "{one} and {other}"),
    GuardRule("object-freed",
        r"Cache line invalidated because L\[['\"](?P<name>.*?)['\"]\](?P<rest>.*) got deallocated",
        source="{name}{rest}"),
    GuardRule("object-freed", r"Cache line invalidated because (?P<source>.+) got deallocated"),
    # -- tensors
    *(GuardRule(f"{what}-changed", _PAIR.format(what)) for what in ("size", "stride", "dtype", "rank")),
    GuardRule("requires-grad-changed", _GRAD + r"\. expected requires_grad=1", "True", "False"),
    GuardRule("requires-grad-changed", _GRAD, "False", "True"),
    GuardRule("tensor-state-changed", _MISMATCH.format("dispatch key set")
        + r"\. expected DispatchKeySet\((?P<expected>[^)]*)\), actual DispatchKeySet\((?P<actual>[^)]*)\)"),
    GuardRule("device-changed",
        r"(?i:(?:tensor '(?P<source>.+?)' )?.*device index.*?(?P<expected>-?\d+)\D+(?P<actual>-?\d+))"),
    GuardRule("none-changed", _NO_TENSOR + r"NoneType'>", "a tensor", "None"),
    GuardRule("type-changed", _NO_TENSOR + r"(?P<actual>int|float|bool|str|list|tuple|dict|complex)'>", "a tensor"),
    GuardRule("tensor-class-changed", _NO_TENSOR + r"(?P<actual>.+?)'>", "a tensor"),
    # -- the state of the process
    GuardRule("grad-mode-changed", _STATE + r"(?P<condition>(?:.*\s)?grad_mode.*)"),
    GuardRule("autocast-changed", _STATE + r"(?P<condition>(?:.*\s)?autocast.*)"),
    GuardRule("global-state-changed", _STATE + r"(?P<condition>.*)"),
    GuardRule("function-mode-changed", r"___check_torch_function_mode_stack"),
    GuardRule("global-state-changed", r".*CURRENT_DEVICE", condition="default_device"),
    # -- identity. Of an object torch keeps the type alone: no value that could be met again.
    GuardRule("type-changed", r"___check_type_id\((?P<source>.+), \d+\), type=(?:<[^']*')?(?P<expected>.+?)(?:'.*>)?$"),
    GuardRule("function-changed",  # to torch 2.12 the "type" of a function is its code object
        r"___check_obj_id\((?P<source>.+?)(?:\.__code__, \d+\), type=<.*>"
        r"|(?:\.__code__)?, \d+\), type=<[^']*'(?:function|builtin_function_or_method|code|method)'.*>)$"),
    GuardRule("object-changed", r"___check_obj_id\((?P<source>.+), \d+\), type=<.*>$"),
    GuardRule("none-changed", r"(?P<source>.+) is not None$", "not None"),
    GuardRule("none-changed", r"(?P<source>.+) is None$", "None"),
    GuardRule("alias-changed", r"(?P<one>[^ ]+) is (?P<other>[^ ]+)$", "one object", "different objects",
        "{one} and {other}"),
    # -- sizes: torch's own versions for 0 and 1, or what the code asked for
    GuardRule("sizes-equal", rf"(?P<condition>.*?{_DIM}.*\.(?:size|stride)\(\)\[.*)", says="duck sizing"),
    GuardRule("size-zero-one", rf"(?P<condition>2 <= {_DIM})$"),
    GuardRule("size-bounds", rf"(?P<condition>2 <= {_DIM} .*)", says="0/1 specialization"),
    GuardRule("size-condition", rf"(?P<condition>.*?{_DIM}.*)"),
    # -- containers; of a dict, whose keys are compared besides, the length is not
    GuardRule("keys-changed", _LENGTH + r" != 1$", "1 key"),
    GuardRule("keys-changed", _LENGTH + r" != (?P<number>\d+)$", "{number} keys"),
    GuardRule("length-changed", _LENGTH + r"(?: == (?P<expected>\d+))?$", "0"),
    GuardRule("keys-changed", r"list\(dict\.keys\((?P<source>.+?)\)\)" + _KEYS_ARE),
    GuardRule("keys-changed", r"list\((?P<source>.+?)\.keys\(\)\)" + _KEYS_ARE),
    *(GuardRule("keys-changed", contains, "with {key}", "without {key}") for contains in _CONTAINS),
    *(GuardRule("keys-changed", f"not {contains}", "without {key}", "with {key}") for contains in _CONTAINS),
    GuardRule("keys-changed", r"KeyError on (?P<source>.+)\[(?P<key>[^\[\]]+)\]$", "with {key}", "without {key}"),
    GuardRule("attribute-changed", r"hasattr\((?P<one>.+), '(?P<name>.+)'\)$", "present", "absent", "{one}.{name}"),
    GuardRule("attribute-changed", r"not hasattr\((?P<one>.+), '(?P<name>.+)'\)$", "absent", "present", "{one}.{name}"),
    GuardRule("length-changed", r"not (?P<source>[\w.\[\]'\"]+)$", "0"),
    # -- values
    GuardRule("value-condition",
        r"(?P<condition>(?=.*(?:(?:<=?|>=?|!=) | % ))[^A-Za-z_]*(?P<source>[A-Za-z_][\w.\[\]'\"]*)?.*)"),
    GuardRule("global-changed", r"(?P<source>G\[.+?)" + _IS.format(".+")),
    GuardRule("training-mode-changed", r"(?P<source>[^=]+?\.training)" + _IS.format(".+")),
    GuardRule("attribute-changed", r"(?P<source>[^=]+?\.[^=]+?)" + _IS.format(".+")),
    GuardRule("bool-changed", r"(?P<source>.+?)" + _IS.format("True|False")),
    GuardRule("int-changed", r"(?P<source>.+?)" + _IS.format(r"-?\d+")),
    GuardRule("float-changed", r"(?P<source>.+?)" + _IS.format(r"-?(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+)")),
    GuardRule("string-changed", r"(?P<source>.+?)" + _IS.format(r"(?P<quote>['\"]).*(?P=quote)")),
    GuardRule("constant-changed", r"(?P<source>.+?)" + _IS.format(".+")),
    GuardRule("other", r"(?P<condition>.*)"),
)
"""The first that matches counts; the last one matches everything."""
# fmt: on


def check_from_text(text: str) -> ReadGuard:
    """Read one guard; of a kind that is not known, `other`."""
    code = guard_code(text)
    check = next(check for rule in GUARDS if (check := rule.read(code, text)) is not None)
    if check.kind == "dtype-changed":
        dtypes = [None if name is None else _DTYPES.get(name, name) for name in (check.expected, check.actual)]
        return msgspec.structs.replace(check, expected=dtypes[0], actual=dtypes[1])
    return _of_keys(check) if check.kind == "tensor-state-changed" else check


def guard_code(text: str) -> str:
    """The guard itself, without torch's comment on the program's line and without its hint."""
    return re.split(r"\s{2,}# | \(HINT: ", text.strip(), maxsplit=1)[0].strip()


def tidy(text: str) -> str:
    """The guard on one line, without the spaces that torch lines its comments up with; two remain before a comment."""
    return re.sub(r" {3,}", "  ", " ".join(text.strip().splitlines()))


def _of_keys(check: ReadGuard) -> ReadGuard:
    """What two sets of dispatch keys say of the tensors that have them."""
    before, after = (set(re.findall(r"\w+", keys or "")) for keys in (check.expected, check.actual))
    devices = [", ".join(sorted(keys & _DEVICES)).lower() for keys in (before, after)]
    lost, gained = (", ".join(sorted(keys)) for keys in (before - after, after - before))
    kind, sides = check.kind, (f"with {lost}", f"without {lost}")
    if devices[0] != devices[1]:
        kind, sides = "device-changed", (devices[0], devices[1])
    elif lost.startswith("Autograd") and not gained:
        sides = ("an ordinary tensor", "an inference tensor")
    elif gained.startswith("Autograd") and not lost:
        sides = ("an inference tensor", "an ordinary tensor")
    elif gained:
        sides = (f"without {gained}", f"with {gained}")
    return msgspec.structs.replace(check, kind=kind, expected=sides[0], actual=sides[1])


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
