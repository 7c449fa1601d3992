"""Reads from a generated module which kernel parameters are read or written, and which buffers each launch names."""

from __future__ import annotations

import ast
import re

import msgspec

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
        if kind.startswith("cpp"):
            signature = _cpp(call)
        elif kind == "triton":
            signature = _triton(call)
        else:
            signature = None
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
    types: dict[str, str] | None = None
    mutated: tuple[str, ...] = ()
    for decorator in function.decorator_list:
        for node in ast.walk(decorator):
            if not isinstance(node, ast.Dict):
                continue
            for key, value in zip(node.keys, node.values, strict=True):
                label = key.value if isinstance(key, ast.Constant) else None
                if label == "signature" and isinstance(value, ast.Dict):
                    types = {
                        str(k.value): str(v.value)
                        for k, v in zip(value.keys, value.values, strict=True)
                        if isinstance(k, ast.Constant) and isinstance(v, ast.Constant)
                    }
                elif label == "mutated_arg_names":
                    mutated = tuple(_strings(value) or ())
    return types, mutated


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
        if isinstance(statement, ast.Assign):
            names += [
                node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)
            ]
        found[call.lineno] = tuple(dict.fromkeys(names))
    return found
