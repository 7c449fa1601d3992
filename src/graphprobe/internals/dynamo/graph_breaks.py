"""Tells of every graph break, of functions that Dynamo gives up on, and of the graphs between, whatever the backend.

Three places of torch are tapped. None of them puts a frame of ours on the stack while Dynamo traces, because Dynamo
inspects its own stack and logs it.
"""

from __future__ import annotations

import ast
import functools
import linecache
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from types import CodeType, ModuleType
from typing import Any, Protocol

from graphprobe.analysis.breaks_facts import BreakFact, UncompiledFact, UserFrame
from graphprobe.internals.bus import Advice, Listener, Patch, Subscriber, Subscription, advised
from graphprobe.internals.dynamo.compile_facts import FrameName, frame_name, guard_reader
from graphprobe.internals.dynamo.dynamo_taps import current_compile_id
from graphprobe.internals.observer import BreakObserver

BODIES = ("body", "orelse", "finalbody", "handlers", "cases")
MAX_CHARACTERS = 2000
"""Of a statement or expression; of a longer one nothing is kept."""

MOST_LINES = 12
"""Of a statement that is kept with a break."""

BREAKS = ("Unsupported", "UserError", "UncapturedHigherOrderOpError")
"""Exceptions of Dynamo that mean: this cannot be put into a graph."""

ALWAYS_RAISED = ("UncapturedHigherOrderOpError", "TorchRuntimeError")
"""Those that reach the program without `fullgraph=True` too."""


def code_at(file: str, line: int | None, column: int | None, end_column: int | None) -> tuple[str, str]:
    """The statement, a compound one without its body, and the expression, as Python writes them; empty if not found.

    Columns are those of `dis.Positions`, in bytes. Which line the expression ends on is not known.
    """
    if line is None or column is None or end_column is None:
        return "", ""
    tree = _parsed("".join(linecache.getlines(file)))
    statement = _statement_at(tree, line, column) if tree is not None else None
    if statement is None:
        return "", ""
    expression = _expression_at(statement, line, column, end_column)
    texts = (ast.unparse(_without_body(statement)), "" if expression is None else ast.unparse(expression))
    return ("", "") if max(map(len, texts)) > MAX_CHARACTERS else texts


@functools.lru_cache(maxsize=16)
def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _statement_at(tree: ast.Module, line: int, column: int) -> ast.stmt | None:
    """The innermost statement that reaches over the position."""
    found: ast.stmt | None = None
    for node in ast.walk(tree):  # from the outside in
        if isinstance(node, ast.stmt):
            begin, end = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
            found = node if begin <= (line, column) < end else found
    return found


def _without_body(statement: ast.stmt) -> ast.stmt:
    """The statement with `...` in the place of what it contains."""
    if not hasattr(statement, "body") and not hasattr(statement, "cases"):
        return statement
    fields = {name: value for name, value in ast.iter_fields(statement) if name not in BODIES}
    fields |= {name: [] for name in BODIES[1:] if hasattr(statement, name)}
    nothing: list[ast.stmt] = [ast.Expr(ast.Constant(...))]
    if isinstance(statement, ast.Match):
        fields["cases"] = [ast.match_case(ast.MatchAs(), body=nothing)]
    else:
        fields["body"] = nothing
    if isinstance(statement, ast.Try | ast.TryStar):
        fields["finalbody"] = nothing
    return ast.copy_location(type(statement)(**fields), statement)


def _expression_at(statement: ast.stmt, line: int, column: int, end_column: int) -> ast.expr | None:
    expressions = [node for node in ast.walk(statement) if isinstance(node, ast.expr)]
    for node in expressions:
        if (node.lineno, node.col_offset, node.end_col_offset) == (line, column, end_column):
            return node
    for node in expressions:  # of a call on several lines CPython keeps where the method's name begins
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.end_col_offset == end_column:
            name = node.func
            if (name.end_lineno, (name.end_col_offset or 0) - len(name.attr.encode())) == (line, column):
                return node
    return None


class GraphObserver(Listener, Protocol):
    """Told of the graphs that Dynamo gives to backends."""

    def graph(self, gm: Any, output_graph: Any, guards: Callable[[], list[dict[str, Any]]]) -> None:
        """A backend is about to get a graph. `guards` reads its guards, once the compile has ended."""


def patches(to: Subscriber[BreakObserver]) -> list[Patch]:
    """The taps for breaks and for functions left uncompiled."""

    def log_graph_break(tx: Any, *args: Any, **kwargs: Any) -> Advice:
        def tell() -> None:
            given = [*args, *kwargs.values()]
            exc = next((value for value in given if isinstance(value, BaseException)), None)
            if exc is None or getattr(exc, "logged", False):
                return
            reason = kwargs.get("reason") or next((value for value in args if isinstance(value, str)), "")
            root = tx.output.root_tx if tx.output.root_tx is not None else tx
            handling = str(reason).partition("\n")[0]
            named = frame_name(root.f_code, root.f_locals)
            fact = _break(exc, named, handling="" if handling == _text(exc).partition("\n")[0] else handling)
            to.observer.graph_break(fact, tx.output.compiler_fn)

        to.tell("graph break", tell, None)
        yield

    def exception_handler(e: Any, code: Any, *args: Any, **kwargs: Any) -> Advice:
        """torch calls it with whatever ends the compile of a function; what the program will get is a break, too."""

        def tell() -> None:
            if getattr(e, "logged", False):
                return
            compile_locals = _locals_of(e, "_compile")
            named = frame_name(code, compile_locals.get("locals") or {})
            if type(e).__name__ not in (*BREAKS, *ALWAYS_RAISED):
                if not sys.modules["torch._dynamo.config"].suppress_errors:
                    to.observer.graph_break(_break(e, named, died=True), compile_locals.get("compiler_fn"))
            elif _is_raised(e, compile_locals):
                to.observer.graph_break(_break(e, named, raised=True), compile_locals.get("compiler_fn"))

        to.tell("graph break", tell, None)
        yield

    def format_error_msg(exc: Any, code: Any, *args: Any, **kwargs: Any) -> Advice:
        """torch calls it where it swallows an error, and runs the function uncompiled."""
        to.tell("uncompiled function", lambda: to.observer.uncompiled(*_uncompiled(exc, code)), None)
        yield

    convert_frame, translator = "torch._dynamo.convert_frame", "torch._dynamo.symbolic_convert"
    return [
        advised("graph_breaks", translator, "InstructionTranslatorBase.log_graph_break", log_graph_break),
        advised("graph_breaks", convert_frame, "exception_handler", exception_handler),
        advised("uncompiled", convert_frame, "format_error_msg", format_error_msg),
    ]


def _uncompiled(exc: Any, code: CodeType) -> tuple[UncompiledFact, object]:
    is_break, compile_locals = type(exc).__name__ in BREAKS, _locals_of(exc, "_compile")
    named = frame_name(code, compile_locals.get("locals") or {})
    fact = UncompiledFact(
        reason=_text(exc) if is_break else f"{type(exc).__name__}: {exc}",
        gb_type=_gb_type(exc),
        broke=is_break and bool(getattr(exc, "logged", False)),
        stack=frames_of(getattr(exc, "real_stack", None)),
        function=named.name,
        file=named.file,
        first_line=named.line,
        inside=whose(code.co_filename),
    )
    return fact, compile_locals.get("compiler_fn")


def _break(exc: Any, named: FrameName, *, handling: str = "", raised: bool = False, died: bool = False) -> BreakFact:
    return BreakFact(
        reason=f"{type(exc).__name__}: {exc}" if died else _text(exc),
        died=died,
        gb_type=_gb_type(exc),
        handling=handling,
        raised=raised,
        stack=frames_of(getattr(exc, "real_stack", None)),
        compile_id=current_compile_id(),
        function=named.name,
        file=named.file,
        first_line=named.line,
    )


def _text(exc: Any) -> str:
    """Without the lines on the user's code, which torch adds to the exception later."""
    return str(getattr(exc, "msg", None) or exc)


def _gb_type(exc: Any) -> str | None:
    found = getattr(exc, "gb_type", None)
    return found if isinstance(found, str) and found else None


def _is_raised(error: Any, compile_locals: dict[str, Any]) -> bool:
    """Whether torch hands the error on to the program instead of running the function uncompiled."""
    if type(error).__name__ in ALWAYS_RAISED or compile_locals.get("one_graph", True):
        return True
    tracer = getattr(error, "_torch_dynamo_tracer_output", None)
    return bool(getattr(tracer, "error_on_graph_break", False))


def _locals_of(error: BaseException, function: str) -> dict[str, Any]:
    """The arguments of a function of Dynamo's that the error has come through; empty where it has not."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return next((frame.f_locals for frame in frames if frame.f_code.co_name == function), {})


def frames_of(stack: Sequence[Any] | None) -> list[UserFrame]:
    """A traceback's summary as frames of the program, outermost first."""
    return [_frame(frame, str(frame.filename)) for frame in stack or ()]


def _frame(frame: Any, file: str) -> UserFrame:
    ends = (getattr(frame, name, None) for name in ("colno", "end_colno"))
    statement, code = code_at(file, frame.lineno, *ends)
    return UserFrame(
        file=file,
        line=frame.lineno,
        function=str(frame.name),
        source=_statement(frame),
        statement=statement,
        code=code,
        inside=whose(file),
    )


def _statement(frame: Any) -> str:
    """The line, and those that follow it as long as a bracket is open; in one line."""
    text = (frame.line or "").strip()
    number = frame.lineno or 0
    for following in range(number + 1, number + MOST_LINES):
        if sum(map(text.count, "([{")) <= sum(map(text.count, ")]}")):
            break
        text = f"{text} {linecache.getline(str(frame.filename), following).strip()}"
    return text


def whose(file: str) -> str | None:
    """`torch` or `python` for a file of torch or of Python's library; None for the program and other packages."""
    for name in ("torch", "torchgen", "functorch"):
        origin = getattr(sys.modules.get(name), "__file__", None)
        if origin and file.startswith(os.path.dirname(origin) + os.sep):
            return "torch"
    packages = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
    library = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
    if file.startswith(library) and not any(part in file for part in packages):
        return "python"
    return "python" if file.startswith("<frozen ") else None


def listen(observer: BreakObserver) -> Callable[[], None]:
    """Tell `observer` of every break in this process from now on, until what is returned is called.

    torch is not imported for it. Observers may come and go in any order.
    """
    to = Subscriber(observer)
    return _until_stopped(to, patches(to), "graph breaks")


def tap_graphs(observer: GraphObserver) -> Callable[[], None]:
    """Tell `observer` of every graph from now on, until what is returned is called; torch is not imported for it."""
    to = Subscriber(observer)

    def call_user_compiler(output: Any, gm: Any, example_inputs: Any) -> Advice:
        to.tell("graph", lambda: observer.graph(gm, output, guard_reader()), None)
        yield

    where = ("torch._dynamo.output_graph", "OutputGraph.call_user_compiler")
    return _until_stopped(to, [advised("dynamo_graph", *where, call_user_compiler)], "graphs")


def _until_stopped(to: Subscriber[Any], wanted: list[Patch], what: str) -> Callable[[], None]:
    told: list[str] = []

    def imported(_: ModuleType) -> None:
        for address in subscription.missing:
            if address not in told:
                told.append(address)
                to.observer.failed(what, f"this torch lacks {address}")

    def stop() -> None:
        to.close()
        subscription.remove()

    subscription = Subscription(wanted, imported=imported)
    subscription.install()
    return stop
