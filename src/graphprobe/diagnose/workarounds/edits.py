"""Pieces of the user's code that are left uncompiled: what to write, and the same written into a running program."""

from __future__ import annotations

import ast
import linecache
import textwrap
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

import msgspec

from graphprobe.analysis.breaks_edits import codes_in
from graphprobe.diagnose.dynamo.experiment import Experiment, functions_run
from graphprobe.diagnose.dynamo.python_source import SCOPES, source_at
from graphprobe.diagnose.dynamo.rewriting import PAUSES, SourcePiece
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.settings import Compilation
from graphprobe.engine.naming import is_library
from graphprobe.judge.verdict import base_of

MOST_EDITS, MOST_AT_LINE = 6, 3
"""Pieces of one finding that are tried: those of the accused line, those around the first, those within."""

HELPER = "@torch.compiler.disable\ndef {name}({given}):\n{body}"


class PieceEdit(msgspec.Struct, frozen=True):
    """A piece of one function that becomes the call of a function that is not compiled.

    Attributes:
        function: qualified name and first line of the function that has the piece.
        begin, end: line, and column in bytes, of the piece in the file.
        call: what takes its place.
        helper: the function that is called, to be written above.
    """

    file: str
    function: tuple[str, int]
    begin: tuple[int, int]
    end: tuple[int, int]
    call: str
    helper: str

    @property
    def place(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.begin[0]}"

    @property
    def text(self) -> str:
        """What to write, with comments that say where."""
        first, last = self.begin[0], self.end[0]
        lines = f"line {first} becomes" if first == last else f"lines {first} to {last} become"
        source = source_at(self.file)
        imported = "import torch\n\n" * (source is None or source.imports.get("torch") != "torch")
        new = edited(linecache.getlines(self.file), [self])[first - 1]
        return f"{imported}{self.helper}\n\n# {lines}:\n{new.rstrip()}"


def edited(lines: Sequence[str], edits: Sequence[PieceEdit]) -> list[str]:
    """The lines of a file with edits; a piece of several lines leaves empty ones: the rest stays where it is."""
    made = list(lines)
    for edit in sorted(edits, key=lambda edit: edit.begin, reverse=True):
        (first, column), (last, until) = edit.begin, edit.end
        head, tail = made[first - 1].encode()[:column], made[last - 1].encode()[until:]
        made[first - 1] = f"{head.decode()}{edit.call}{tail.decode()}"
        made[first:last] = ["\n"] * (last - first)
    return made


def put_in(edits: Sequence[PieceEdit]) -> None:
    """Write edits into the functions of this process.

    Raises:
        ValueError: a function is not there, or cannot be changed.
        SyntaxError: the text is no Python.
    """
    by_function = defaultdict[tuple[str, str, int], list[PieceEdit]](list)
    for edit in edits:
        by_function[edit.file, *edit.function].append(edit)
    for (file, name, line), mine in by_function.items():
        code = compile("".join(edited(linecache.getlines(file), mine)), file, "exec", dont_inherit=True)
        new = next((c for c in codes_in(code) if (c.co_qualname, c.co_firstlineno) == (name, line)), None)
        functions = functions_run([(file, name, line)])
        if new is None or not functions or any(f.__code__.co_freevars != new.co_freevars for f in functions):
            raise ValueError(f"{name} of {file} cannot be changed")
        for function in functions:
            function.__code__ = new
            for edit in mine:
                exec(f"import torch\n{edit.helper}", function.__globals__)


def edits_at(program: Program, compilation: Compilation, lines: Sequence[str], ops: Sequence[str]) -> list[PieceEdit]:
    """Edits that leave a piece of these lines uncompiled, and the calls around that one; run it in a child.

    Args:
        lines: `file:line` of what is accused; empty: wherever the program calls one of `ops`.
        ops: names of the accused operations, the likeliest first.
    """
    pieces = Experiment(program, compilation).pieces_run()
    bases = [base_of(op) for op in ops]
    near = [n for n, piece in pieces.items() if piece.source in lines or (not lines and _rank(piece, bases) < 2)]
    outwards = [n for first in near[:1] for n in reversed(pieces[first].inside) if n in pieces]
    within = [n for n, piece in pieces.items() if set(piece.inside).intersection(near)]
    for some in (near, within):
        some.sort(key=lambda n: (_rank(pieces[n], bases), -len(pieces[n].inside)))
    numbers = dict.fromkeys([*near[:MOST_AT_LINE], *outwards, *within])
    return list(dict.fromkeys(filter(None, (edit_of(pieces[n]) for n in numbers))))[:MOST_EDITS]


def _rank(piece: SourcePiece, bases: Sequence[str]) -> int:
    """0: it is called as an accused operation is; 1: it calls one; 2: neither."""
    if {base_of(name) for name in piece.names}.intersection(bases):
        return 0
    return 1 if {base_of(name) for name in piece.ops}.intersection(bases) else 2


def edit_of(piece: SourcePiece) -> PieceEdit | None:
    """What leaves a piece uncompiled; None where it cannot be moved into a function of its own."""
    file = piece.source.rpartition(":")[0]
    source, lines = source_at(file), linecache.getlines(file)
    (first, column), (last, until) = piece.begin, piece.end
    if source is None or is_library(file) or not piece.function[0] or last > len(lines):
        return None
    whole = [line.encode() for line in lines[first - 1 : last]]
    whole[-1] = whole[-1][:until]
    text = textwrap.dedent(b"".join([b" " * column + whole[0][column:], *whole[1:]]).decode())
    around = [
        n for n in ast.walk(source.tree) if isinstance(n, SCOPES) and n.lineno <= first and (n.end_lineno or 0) >= last
    ]
    own = {name for scope in around if not isinstance(scope, ast.ClassDef) for name in _bound(scope)}
    try:
        body, given, back = _moved(text.strip(), own, truth=piece.names == ["bool"])
    except SyntaxError:
        return None
    name = f"uncompiled_{first}"
    call = f"{name}({', '.join(given)})"
    helper = HELPER.format(name=name, given=", ".join(given), body=textwrap.indent(body, "    "))
    return PieceEdit(
        file, piece.function, piece.begin, piece.end, f"{', '.join(back)} = {call}" if back else call, helper
    )


def _moved(text: str, own: Collection[str], *, truth: bool) -> tuple[str, list[str], list[str]]:
    """The body of a function that does the same, the names it is given, and those that it returns.

    Raises:
        SyntaxError: the text cannot stand in a function of its own.
    """
    try:
        node: ast.AST = ast.parse(f"({text}\n)", mode="eval").body
        expression = True
    except SyntaxError:
        node, expression = ast.parse(text), False
    kinds = (*PAUSES, ast.NamedExpr, ast.Global, ast.Nonlocal, ast.Return)
    names = [n for n in _in_order(node) if isinstance(n, ast.Name)]
    special = any(n.id in ("super", "__class__") or n.id.startswith("__") for n in names)
    if special or any(isinstance(n, kinds) for n in ast.walk(node)):
        raise SyntaxError("it belongs to its function")
    stored = [n.id for n in names if not isinstance(n.ctx, ast.Load)]
    inner = {name for n in ast.walk(node) if isinstance(n, (ast.comprehension, ast.Lambda)) for name in _bound(n)}
    first = {n.id: n for n in reversed(names)}
    read = [n.id for n in names if isinstance(n.ctx, ast.Load) or _is_augmented(node, n)]
    given = [name for name in dict.fromkeys(read) if name in own and name not in inner and _is_read(node, first[name])]
    if expression:
        return f"return {f'bool({text})' if truth else text if chr(10) not in text else f'({text})'}", given, []
    back = [name for name in dict.fromkeys(stored) if name in own and name not in inner]
    return text + (f"\nreturn {', '.join(back)}" if back else ""), given, back


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes as they are evaluated: what is assigned comes before where it is assigned to."""
    yield node
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.For, ast.comprehension)):
        value = node.iter if isinstance(node, (ast.For, ast.comprehension)) else node.value
        children.sort(key=lambda child: child is not value)
    for child in children:
        yield from _in_order(child)


def _is_augmented(node: ast.AST, name: ast.Name) -> bool:
    return any(isinstance(n, ast.AugAssign) and n.target is name for n in ast.walk(node))


def _is_read(node: ast.AST, name: ast.Name) -> bool:
    """Whether the first that a piece does with a name is to read it."""
    return isinstance(name.ctx, ast.Load) or _is_augmented(node, name)


def _bound(scope: ast.AST) -> Iterator[str]:
    """Names that are set in a function, a lambda or a comprehension, those of functions inside of it as well."""
    targets = [scope.target] if isinstance(scope, ast.comprehension) else [scope]
    for n in (n for target in targets for n in ast.walk(target)):
        if isinstance(n, ast.arg):
            yield n.arg
        elif isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load):
            yield n.id
        elif isinstance(n, (ast.FunctionDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and n.name:
            yield n.name
        elif isinstance(n, ast.alias):
            yield n.asname or n.name.partition(".")[0]
