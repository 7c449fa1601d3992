"""Reads from a generated wrapper what each launch reads and writes, and which scheduler nodes it carries out.

Read from the module's text: the declarations of its kernels, the schemas of the operators it calls, and the order of
its lines. Given the scheduler's nodes, a name is followed to the buffer of the IR whose value it holds.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from graphprobe.internals.ir.records import IRNode

Kind = Literal["kernel", "extern", "op"]

SYMBOL = re.compile(r"^(s|u|zf|zuf|ks|ps|i)\d+$")
"""Names of sizes and numbers in a wrapper."""

ROOTS = {"aten": "torch.ops.aten", "inductor_ops": "torch.ops.inductor", "_quantized": "torch.ops._quantized"}
"""Names of operator namespaces in a generated module."""

CPP_BEGIN = re.compile(r'extern "C"\s+(?:C10_EXPORT\s+)?void\s+(?:\w+\s+)*kernel\s*\(')
IN_OUT = "in_out"
ONLY_WRITTEN = ("out_ptr", "ws_ptr")

ALLOCATIONS = ("empty_strided", "reinterpret_tensor", "alloc_from_pool", "assert_size_stride", "assert_alignment")
"""Names that make or check a view of memory, and launch nothing."""


class Parameter(msgspec.Struct, frozen=True):
    """One positional parameter of a generated kernel.

    Attributes:
        name: in the kernel's source, e.g. `in_ptr0`; empty where the source does not tell.
        pointer: whether it is a buffer, and not a number.
        reads, writes: what the kernel may do to the buffer.
    """

    name: str
    pointer: bool
    reads: bool
    writes: bool


Signature = tuple[Parameter, ...]


def declarations(code: str) -> dict[str, ast.Call]:
    """Kernels of a generated module by name, with the call that makes each: top-level `name = async_compile.…(…)`."""
    found: dict[str, ast.Call] = {}
    for statement in ast.parse(code).body:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
            continue
        call = statement.value.func
        if isinstance(call, ast.Attribute) and isinstance(call.value, ast.Name) and call.value.id == "async_compile":
            found |= {target.id: statement.value for target in statement.targets if isinstance(target, ast.Name)}
    return found


def signatures(code: str) -> dict[str, Signature]:
    """Signature of each kernel of a generated module that could be read; others are left out."""
    calls = declarations(code)
    found: dict[str, Signature] = {}
    for name, call in calls.items():
        kind = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        signature = _cpp(call) if kind.startswith("cpp") else _triton(call) if kind == "triton" else None
        if signature is not None:
            found[name] = signature
    for name, call in calls.items():
        # A choice between kernels that take the same arguments.
        inner = [n.id for n in ast.walk(call) if isinstance(n, ast.Name) and n.id in found]
        if name not in found and inner:
            found[name] = found[inner[0]]
    return found


def kernel_source(code: str, name: str) -> tuple[str, str] | None:
    """The source of one kernel of a generated module, and the suffix of its language: `.cpp` or `.py`.

    None where the module has no such kernel, or makes it out of others.
    """
    call = declarations(code).get(name)
    if call is None:
        return None
    texts = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    kind = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    source = next((text for text in reversed(texts) if "\n" in text), None)
    return None if source is None else (".cpp" if kind.startswith("cpp") else ".py", source.strip() + "\n")


def _strings(node: ast.expr) -> list[str] | None:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return value if isinstance(value, list) and all(isinstance(item, str) for item in value) else None


def _cpp(call: ast.Call) -> Signature | None:
    """`async_compile.cpp_pybinding(['const float*', 'float*', 'const int64_t'], '''source''')`."""
    types = _strings(call.args[0]) if call.args else None
    if types is None:
        return None
    source = call.args[1].value if len(call.args) > 1 and isinstance(call.args[1], ast.Constant) else ""
    names = _cpp_names(str(source))
    if len(names) != len(types):
        names = [""] * len(types)
    return tuple(_cpp_parameter(name, kind) for name, kind in zip(names, types, strict=True))


def _cpp_parameter(name: str, kind: str) -> Parameter:
    pointer, constant = "*" in kind, kind.lstrip().startswith("const")
    # A pointer that may be written to is read as well, unless its name says that it is an output only.
    reads = pointer and (constant or not name.startswith(ONLY_WRITTEN))
    return Parameter(name, pointer, reads, pointer and not constant)


def _cpp_names(source: str) -> list[str]:
    """Names of the parameters of `kernel` in C++ source, in order; empty if it is not found."""
    begins = [match.end() for match in CPP_BEGIN.finditer(source)]
    if not begins:
        return []
    begin = begins[-1]  # helpers come before it
    depth, at = 1, begin
    while at < len(source) and depth:
        depth += {"(": 1, ")": -1}.get(source[at], 0)
        at += 1
    parts = [part.strip() for part in source[begin : at - 1].split(",")]
    names = [re.search(r"(\w+)\s*$", part) for part in parts if part]
    return [match.group(1) if match else "" for match in names]


def _triton(call: ast.Call) -> Signature | None:
    """`async_compile.triton('name', '''source''')`: the parameters of the jitted function and its metadata."""
    texts = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    name = texts[0] if texts else ""
    try:
        module = ast.parse(texts[1] if len(texts) > 1 else "")
    except SyntaxError:
        return None
    functions = [n for n in module.body if isinstance(n, ast.FunctionDef)]
    function = next((n for n in functions if n.name == name), functions[-1] if functions else None)
    if function is None:
        return None
    types, mutated = _triton_meta(function)
    if types is None:
        return None
    names = [a.arg for a in function.args.args]
    given = [n for n in names if n in types and types[n] != "constexpr"]
    return tuple(_triton_parameter(n, types[n], n in mutated) for n in given)


def _triton_parameter(name: str, kind: str, mutated: bool) -> Parameter:
    pointer = kind.startswith("*")
    writes = mutated or name.startswith((*ONLY_WRITTEN, IN_OUT))
    return Parameter(name, pointer, pointer and not name.startswith(ONLY_WRITTEN), pointer and writes)


def _triton_meta(function: ast.FunctionDef) -> tuple[dict[str, str] | None, tuple[str, ...]]:
    """Types by parameter and the names of the mutated ones, from the function's decorators."""
    inside = (node for decorator in function.decorator_list for node in ast.walk(decorator))
    found = {key: value for node in inside if isinstance(node, ast.Dict) for key, value in _entries(node)}
    signature, mutated = found.get("signature"), found.get("mutated_arg_names")
    types = None
    if isinstance(signature, ast.Dict):
        types = {str(key): str(value.value) for key, value in _entries(signature) if isinstance(value, ast.Constant)}
    return types, () if mutated is None else tuple(_strings(mutated) or ())


def _entries(node: ast.Dict) -> Iterator[tuple[Any, ast.expr]]:
    pairs = zip(node.keys, node.values, strict=True)
    return ((key.value, value) for key, value in pairs if isinstance(key, ast.Constant))


def buffers_by_line(code: str) -> dict[int, tuple[str, ...]]:
    """Line of every call statement -> the names it takes and the names its result is bound to, without repeats."""
    found: dict[int, tuple[str, ...]] = {}
    for statement in ast.walk(ast.parse(code)):
        if not isinstance(statement, ast.Expr | ast.Assign) or not isinstance(statement.value, ast.Call):
            continue
        call = statement.value
        if isinstance(call.func, ast.Name) and call.func.id.startswith(ALLOCATIONS):
            continue
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        names = [node.id for value in given for node in ast.walk(value) if isinstance(node, ast.Name)]
        names = [name for name in names if not name.startswith(ALLOCATIONS)]
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        names += [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
        found[call.lineno] = tuple(dict.fromkeys(names))
    return found


class Use(msgspec.Struct, frozen=True, omit_defaults=True):
    """One buffer that a launch takes or gives.

    Attributes:
        name: the variable of the wrapper, e.g. `buf3` or a graph input's name.
        position: the launch's positional argument (from 0) or keyword; None for a result.
        path: place inside that argument, for a list of tensors.
        result: place inside what the call returned: `()` is all of it, `(0,)` its first item; None for an argument.
        view: the argument is another view of the buffer's memory, not the buffer as it is.
        value: the buffer of the IR whose value this is. It differs from `name` where a buffer took over the memory of
            another, or where a graph input was written to.
    """

    name: str
    position: int | str | None = None
    path: tuple[int, ...] = ()
    result: tuple[int, ...] | None = None
    view: bool = False
    value: str | None = None


class LaunchIO(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call of a generated wrapper that launches something.

    Attributes:
        line: of the call in the generated module, as in `Launch.line`.
        name: kernel, `extern_kernels.mm`, or `aten.<op>.<overload>`, as in `Launch.name`.
        kind: `kernel` (generated), `extern` (library call) or `op` (fallback through the dispatcher).
        reads: what it may read. With scheduler nodes given, not what it writes itself before it reads it.
        writes: what it may write; what is read and written is in both.
        nodes: names of the scheduler nodes that it carries out, in the scheduler's order.
    """

    line: int
    name: str
    kind: Kind
    reads: tuple[Use, ...] = ()
    writes: tuple[Use, ...] = ()
    nodes: tuple[str, ...] = ()


def launch_ios(code: str, nodes: Sequence[IRNode] = ()) -> dict[int, LaunchIO]:
    """The launches of a generated module by line, in the order of its lines.

    Args:
        code: text of the module.
        nodes: the scheduler's after fusion, those of nested graphs included; without them `Use.value` is the memory's
            name, and `nodes` are empty.
    """
    tree = ast.parse(code)
    reader = _Reader(signatures(code))
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            reader.function(function)
    launches = sorted(reader.launches, key=lambda launch: launch.line)
    owners = _owners(launches, nodes, reader.parents, reader.bound)
    current: dict[str, str] = {}
    found = {}
    for launch in launches:
        mine = [node for node in nodes if owners.get(node.name) == launch.line]
        found[launch.line] = _resolved(launch, mine, reader.parents, current, bool(nodes))
    return found


class _Reader:
    """Collects launches, and which variable took over whose memory."""

    def __init__(self, kernels: dict[str, Signature]) -> None:
        self._kernels = kernels
        self.launches: list[LaunchIO] = []
        self.parents: dict[str, str] = {}
        """Variable -> the one whose memory it is."""
        self.bound: dict[str, int] = {}
        """Variable that a launch's result was bound to -> the launch's line."""

    def function(self, function: ast.FunctionDef) -> None:
        """Read the lines of one function; those of functions inside it are read on their own."""
        results: dict[str, int] = {}
        for statement, deleted in _statements(function.body):
            value = statement.value
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            call = value
            while isinstance(call, ast.Subscript):
                call = call.value
            launch = self._launch(call) if isinstance(call, ast.Call) else None
            if launch is not None:
                index = len(self.launches)
                self.launches.append(launch)
                path = _path(value)
                for name in names:
                    results[name] = index
                    self.bound[name] = launch.line
                    self._bind(index, Use(name, result=path, value=name))
                continue
            base = buffer_of(value)
            if base is None:
                continue
            for name in names:
                if base in results and isinstance(value, (ast.Subscript, ast.Name)) and base not in deleted:
                    self._bind(results[base], Use(name, result=_path(value), value=name), instead_of=base)
                self.parents[name] = base

    def _bind(self, index: int, use: Use, instead_of: str | None = None) -> None:
        launch = self.launches[index]
        kept = tuple(w for w in launch.writes if not (w.name == instead_of and w.result == ()))
        self.launches[index] = msgspec.structs.replace(launch, writes=(*kept, use))

    def _launch(self, call: ast.Call) -> LaunchIO | None:
        name = _dotted(call.func)
        if name is None:
            return None
        kernel = name.removesuffix(".run")
        if kernel in self._kernels:
            return _kernel(call, kernel, self._kernels[kernel])
        root, _, rest = name.partition(".")
        if root == "extern_kernels" and rest:
            return _extern(call, name)
        if name.startswith("torch.ops."):
            return _op(call, name.removeprefix("torch.ops."), name)
        if root in ROOTS and rest:
            return _op(call, f"{ROOTS[root].removeprefix('torch.ops.')}.{rest}", f"{ROOTS[root]}.{rest}")
        return None


def _statements(body: Sequence[ast.stmt]) -> Iterator[tuple[ast.Assign | ast.Expr, tuple[str, ...]]]:
    """Assignments and calls in the order of their lines, out of `with`, `if` and loops, not of functions and classes.

    Each with the names that are deleted on the same line: `buf3 = buf0; del buf0  # reuse`.
    """
    for at, statement in enumerate(body):
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            continue
        if isinstance(statement, (ast.Assign, ast.Expr)):
            following = body[at + 1] if at + 1 < len(body) else None
            deleted: tuple[str, ...] = ()
            if isinstance(following, ast.Delete) and following.lineno == statement.lineno:
                deleted = tuple(target.id for target in following.targets if isinstance(target, ast.Name))
            yield statement, deleted
        for block in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, block, []))


def _dotted(node: ast.expr) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def _path(value: ast.expr) -> tuple[int, ...]:
    path: list[int] = []
    while isinstance(value, ast.Subscript):
        if isinstance(value.slice, ast.Constant) and isinstance(value.slice.value, int):
            path.append(value.slice.value)
        value = value.value
    return tuple(reversed(path))


def buffer_of(node: ast.expr) -> str | None:
    """The variable whose memory an expression of a wrapper stands for; None for numbers and the like."""
    if isinstance(node, ast.Name):
        return None if SYMBOL.match(node.id) or node.id in ("inf", "nan", "device", "torch") else node.id
    if isinstance(node, ast.Subscript):
        return buffer_of(node.value)
    if isinstance(node, ast.Call):
        name = _dotted(node.func)
        if name is not None and name.startswith(("empty_strided", "alloc_from_pool")):
            return None
        if isinstance(node.func, ast.Name) and not node.func.id.startswith(ALLOCATIONS):
            return None
        if isinstance(node.func, ast.Attribute) and name is not None:
            if node.func.attr in ("item", "size", "stride", "numel"):
                return None
            if name.partition(".")[0] not in ("torch", *ROOTS):
                return buffer_of(node.func.value)
        return buffer_of(node.args[0]) if node.args else None
    return None


def _buffers(node: ast.expr) -> Iterator[tuple[tuple[int, ...], str, bool]]:
    """Path, variable and whether it is a view, for each buffer of one argument."""
    if isinstance(node, (ast.List, ast.Tuple)):
        for at, item in enumerate(node.elts):
            for path, found, view in _buffers(item):
                yield (at, *path), found, view
        return
    name = buffer_of(node)
    if name is not None:
        yield (), name, not isinstance(node, ast.Name)


def _uses(call: ast.Call) -> list[Use]:
    named = [(keyword.arg, keyword.value) for keyword in call.keywords if keyword.arg is not None]
    given: list[tuple[int | str, ast.expr]] = [*enumerate(call.args), *named]
    return [Use(name, at, path, view=view) for at, node in given for path, name, view in _buffers(node)]


def _kernel(call: ast.Call, name: str, signature: Signature) -> LaunchIO:
    known: dict[int | str | None, Parameter] = dict(enumerate(signature))
    uses = [(use, known[use.position]) for use in _uses(call) if use.position in known]
    pointers = [(use, parameter) for use, parameter in uses if parameter.pointer]
    reads = tuple(use for use, parameter in pointers if parameter.reads)
    return LaunchIO(call.lineno, name, "kernel", reads, tuple(use for use, parameter in pointers if parameter.writes))


def _extern(call: ast.Call, name: str) -> LaunchIO:
    uses = _uses(call)
    reads, writes = (tuple(use for use in uses if (use.position == "out") == out) for out in (False, True))
    return LaunchIO(call.lineno, name, "extern", reads, writes)


def _op(call: ast.Call, name: str, full: str) -> LaunchIO:
    mutable, outs = _written(full)
    uses = _uses(call)
    reads = tuple(use for use in uses if use.position not in outs)
    return LaunchIO(call.lineno, name, "op", reads, tuple(use for use in uses if use.position in mutable))


def _written(name: str) -> tuple[set[int | str], set[int | str]]:
    """Positions and keywords of an operator's arguments that it writes to, and of those that are outputs only."""
    import torch

    found: Any = torch
    for part in name.split(".")[1:]:
        found = getattr(found, part, None)
    if hasattr(found, "overloads"):
        names = found.overloads()
        found = getattr(found, "default" if "default" in names else names[0], None)
    schema = getattr(found, "_schema", None)
    mutable: set[int | str] = {"out"}
    outs: set[int | str] = {"out"}
    for position, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.alias_info is not None and argument.alias_info.is_write:
            mutable |= {position, argument.name}
            if argument.is_out:
                outs |= {position, argument.name}
    return mutable, outs


def chain(name: str, parents: dict[str, str]) -> Iterator[str]:
    """A variable and those whose memory it took over, the last first."""
    seen: set[str] = set()
    while name not in seen:
        yield name
        seen.add(name)
        name = parents.get(name, name)


def _owners(
    launches: Sequence[LaunchIO], nodes: Sequence[IRNode], parents: dict[str, str], bound: dict[str, int]
) -> dict[str, int]:
    """Scheduler node -> line of the launch that carries it out.

    Nothing can name a buffer before it was written, so the first launch that names one of a node's buffers runs the
    node. What only writes into memory of others is named by that memory, not before the launch of the node before it.
    What does nothing but lie around others, a concatenation, is done when the last of these is.
    """
    first = dict(bound)
    taken: dict[str, int] = {}
    for launch in launches:
        for use in (*launch.writes, *launch.reads):
            first[use.name] = min(first.get(use.name, launch.line), launch.line)
            for name in chain(use.name, parents):
                taken.setdefault(name, launch.line)
    first = taken | first  # under the name of what took its memory over, if by no other
    writers = {out.name: node.name for node in nodes for out in node.outputs}
    found: dict[str, int] = {}
    calls: set[int] = set()
    last = 0
    for node in nodes:
        named = [first[out.name] for out in node.outputs if out.name in first]
        lines = [min(named)] if named else []
        if node.kind == "nop":
            parts = [found[writers[name]] for name in node.inputs if writers.get(name) in found]
            lines = [max(parts)] if parts else lines
        elif not lines:
            memory = {name for out in node.outputs for name in (*out.mutates, *out.aliases)}
            library = node.kind == "extern"  # one node a launch; a kernel carries out several
            lines = [
                launch.line
                for launch in launches
                if launch.line >= last and (launch.kind != "kernel") == library and launch.line not in calls
                if any(memory & set(chain(use.name, parents)) for use in launch.writes)
            ]
            if not lines and node.kind != "extern" and last:
                lines = [last]
        if lines:
            found[node.name] = min(lines)
            calls |= {found[node.name]} if node.kind == "extern" else set()
            last = max(last, found[node.name]) if node.kind != "nop" else last
    return found


def _resolved(
    launch: LaunchIO, nodes: Sequence[IRNode], parents: dict[str, str], current: dict[str, str], known: bool
) -> LaunchIO:
    """The launch with the IR's buffers filled in. `current` has who wrote last to memory that was not its own."""
    outputs = {out.name for node in nodes for out in node.outputs}
    inputs = {name for node in nodes for name in node.inputs} - outputs
    mutations = {name: out.name for node in nodes for out in node.outputs for name in out.mutates}
    reads, inside = [], []
    for use in launch.reads:
        held = [current[name] for name in chain(use.name, parents) if name in current]
        value: str | None = next((name for name in (*held, *chain(use.name, parents)) if name in inputs), None)
        if value is None and known and use.name in outputs and use.name not in mutations:
            inside.append(use)  # written by the launch itself before it is read
            continue
        value = value or (held[0] if held else use.name)
        reads.append(msgspec.structs.replace(use, value=value))
    given = {use.name for use in launch.writes}
    writes = []
    for use in (*launch.writes, *(use for use in inside if use.name not in given)):
        mutated = (mutations[name] for name in chain(use.name, parents) if name in mutations)
        value = use.name if use.name in outputs else next(mutated, use.name)
        writes.append(msgspec.structs.replace(use, value=value))
        if use.name in inputs and all(use.name != read.name for read in reads):
            reads.append(msgspec.structs.replace(use, value=current.get(use.name, use.name)))  # written in part
    current.update(mutations)
    return msgspec.structs.replace(launch, reads=tuple(reads), writes=tuple(writes), nodes=tuple(n.name for n in nodes))
