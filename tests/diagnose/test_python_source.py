"""What Python code computed a value: names in the user's source."""

import ast
import linecache
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from graphprobe.diagnose.dynamo import python_culprit as culprit
from graphprobe.diagnose.dynamo.frame_places import FramePlace, is_users, places_of, places_raised
from graphprobe.diagnose.dynamo.python_source import source_at


def written(text: str, name: str) -> str:
    """A file with this text that only the cache of lines has."""
    file = f"/program/{name}.py"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    source_at.cache_clear()
    return file


def place(file: str, text: str) -> FramePlace:
    """Where this expression is in the file."""
    source = source_at(file)
    assert source is not None
    node = next(n for n in ast.walk(source.tree) if isinstance(n, ast.expr) and ast.unparse(n) == text)
    return FramePlace(file, node.lineno, node.end_lineno or -1, node.col_offset, node.end_col_offset or -1, "program")


VALUES = {
    "a call": ("k = round(n)", ["round"]),
    "the inner of two": ("k = int(round(n))", ["round", "int"]),
    "an alias": ("k = np.round(n)", ["numpy.round"]),
    "a method": ("k = str(n).count('1')", ["str", "count"]),
    "a text": ("k = '{}'.format(n)", ["format"]),
    "another": ("k = len('%d' % n)", ["format", "len"]),
    "a third": ("k = len(f'{n}')", ["format", "len"]),
    "a loop": ("for k in range(n): pass", ["range"]),
    "a block": ("with opened(n) as k: pass", ["opened"]),
    "an attribute": ("k = box.size", ["box.size"]),
    "an entry": ("k = box['size']", ["box['size']"]),
    "a call of them": ("k = abs(box.size)", ["abs", "box.size"]),
    "an object made here": ("rng = random.Random(0); k = rng.random()", ["random.Random.random", "random.Random"]),
    "a walrus": ("(k := round(n))", ["round"]),
    "an annotation": ("k: int = round(n)", ["round"]),
    "in steps": ("k = round(n); k += abs(n)", ["abs", "round"]),
    "the last": ("k = round(n); k = 3", []),
    "one of two": ("k = 1 if isinstance(n, int) else 2", ["isinstance"]),
    "a test": ("k = 1\n    if callable(n):\n        k = 2", ["callable"]),
    "identity": ("k = 1 if box.a is box.b else 2", ["is", "box.a", "box.b"]),
    "identity with a constant": ("k = 1 if box.a is None else 2", ["box.a"]),
    "an exception": ("try:\n        k = box['a']\n    except (KeyError, IndexError):\n        k = 2", ["KeyError"]),
    "a comprehension": ("k = sum([round(i) for i in n])", ["round", "sum"]),
    "a parameter": ("k = n", []),
    "arithmetic": ("k = n // 2", ["operator.floordiv"]),
    "the form of a tensor": ("k = n.exp().stride(0)", ["Tensor.stride", "n.exp"]),
    "a form that was changed": ("t = n.exp(); t.t_(); k = t.stride()", ["Tensor.stride", "Tensor.t_", "n.exp"]),
    "a form changed later": ("t = n.exp(); k = t.stride(); t.t_()", ["Tensor.stride", "n.exp"]),
    "an attribute that a call may have changed": ("fill(box); k = box.size", ["box.size", "fill"]),
    "a call after it": ("k = box.size; fill(box)", ["box.size"]),
    "a call of another": ("fill(x); k = box.size", ["box.size"]),
}


@pytest.mark.parametrize("name", VALUES)
def test_what_computed_an_argument(name: str) -> None:
    lines, wanted = VALUES[name]
    text = f"import random\nimport numpy as np\n\ndef program(x, n, box):\n    {lines}\n    return x * k\n"
    found = culprit.argument_names([place(written(text, name.replace(" ", "_")), "x * k")], "mul", "1")
    assert [named.name for named in found][: len(wanted)] == wanted
    assert bool(found) == bool(wanted)


def test_what_computed_a_part() -> None:
    for body, path, wanted in (
        ("log = []; log.append(abs(n)); log.append(repr(n)); return n, log", "1.1", "repr"),
        ("box = {}; box['a'] = str(n); return box", "a", "str"),
        ("return [abs(n), (n, repr(n))]", "1.1", "repr"),
    ):
        text = f"def program(n):\n    {body}\n"
        file, scope = written(text, "returned"), dict[str, Any]()
        exec(compile(text, file, "exec"), scope)
        first = culprit.returned_names(scope["program"], path)[0]
        assert (first.name, first.source) == (wanted, f"{file}:2")
    for call, name, path, wanted in (
        ("torch.full((len(n), 2), abs(n))", "full", "0.0", ["len"]),
        ("torch.full((len(n), 2), abs(n))", "full", "1", ["abs"]),
        ("x.view(len(n), abs(n))", "view", "2", ["abs"]),
        ("x.sum(dim=abs(n), keepdim=bool(n))", "sum", "keepdim", ["bool"]),
        ("abs(n) * x.sin()", "__rmul__", "1", ["abs"]),
        ("x[abs(n)]", "__getitem__", "1", ["abs"]),
        ("drop(x, abs(n))", "dropout", "p", ["abs"]),
    ):
        text = f"import torch\n\ndef program(x, n, drop):\n    return {call}\n"
        found = culprit.argument_names([place(written(text, "arguments"), ast.unparse(ast.parse(call)))], name, path)
        assert [named.name for named in found] == wanted


def test_a_branch_that_one_side_takes() -> None:
    text = (
        "def program(x, n):\n    if callable(n):\n        x = x.sin()\n    if len(n):\n        return x.cos()\n"
        "    if bool(n):\n        return x.tan()\n    return x.exp()\n"
    )
    file = written(text, "branches")
    sin, cos, tan, last = (
        culprit.TorchCall([place(file, f"x.{name}()")], name) for name in ("sin", "cos", "tan", "exp")
    )
    for sides, names in (
        ((sin, None, []), ["callable"]),
        ((cos, tan, []), ["len", "bool"]),
        ((last, cos, []), ["len"]),
        ((last, last, []), []),
        ((sin, None, [sin.frames]), []),  # both sides went there
    ):
        assert [named.name for named in culprit.branch_names(*sides)] == names


def test_what_a_line_calls() -> None:
    text = (
        "import torch.compiler as tc\n\nregion = tc.nested_compile_region\n\n"
        "@region\ndef dot(x):\n    return x.sum()\n\n"
        "@kept(3)\ndef twice(x):\n    return x * 2\n\ndef program(x):\n    return dot(x) + twice(x)\n"
    )
    file = written(text, "wrapped")
    names = [[named.name for named in culprit.read_names([place(file, call)])] for call in ("dot(x)", "twice(x)")]
    assert names == [["dot", "torch.compiler.nested_compile_region", "x.sum"], ["twice", "kept", "operator.mul"]]
    text = "def program(x, box):\n    match kind(box):\n        case Box(k):\n            return x * k\n"
    assert [named.name for named in culprit.read_names([FramePlace(written(text, "match"), 2)])] == ["kind", "match"]
    file = written("def program(x):\n    return torch.func.jvp(Twice.apply, (x,), (x,))\n", "operators")
    assert culprit.applied_in(FramePlace(file, 2)) == "Twice.apply"
    assert culprit.applied_in(FramePlace("/nowhere.py", 1)) is None


def test_frames() -> None:
    def inner() -> None:
        int("none")

    with pytest.raises(ValueError, match="invalid literal") as caught:
        inner()
    first, second = places_raised(caught.value)
    assert first.function.endswith("inner") and first.line == inner.__code__.co_firstlineno + 1
    assert second.function == "test_frames"

    def call() -> list[FramePlace]:
        return places_of(sys._getframe(0), sys._getframe(1).f_code)

    (frame,) = call()
    assert (frame.file, frame.function.rpartition(".")[2]) == (__file__, "call")
    assert is_users(__file__)
    assert not any(map(is_users, (torch.__file__, ast.__file__, str(Path("<frozen importlib._bootstrap>")))))
