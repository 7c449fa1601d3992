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
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Protocol

from graphprobe.analysis.breaks_facts import BreakFact, UncompiledFact, UserFrame
from graphprobe.internals.bus import Patch, Subscriber, Subscription
from graphprobe.internals.dynamo.compile_facts import FrameName, frame_name, guard_reader
from graphprobe.internals.dynamo.dynamo_taps import current_compile_id
from graphprobe.internals.unseen import unseen

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
    level: list[ast.AST] = [tree]
    while level:
        node = level.pop()
        for child in ast.iter_child_nodes(node):
            if not _covers(child, line, column):
                continue
            found = child if isinstance(child, ast.stmt) else found
            level = [child]
    return found


def _covers(node: ast.AST, line: int, column: int) -> bool:
    if isinstance(node, ast.match_case | ast.withitem | ast.comprehension | ast.arguments):
        return any(_covers(child, line, column) for child in ast.iter_child_nodes(node))
    if not isinstance(node, ast.stmt | ast.expr | ast.excepthandler | ast.keyword | ast.arg | ast.pattern):
        return False
    begins, ends = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
    return begins <= (line, column) < ends


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
    expressions: list[ast.expr] = []
    level: list[ast.AST] = [statement]
    while level:
        level = [child for node in level for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]
        expressions += [node for node in level if isinstance(node, ast.expr)]
    for node in expressions:
        if (node.lineno, node.col_offset, node.end_col_offset) == (line, column, end_column):
            return node
    for node in expressions:  # of a call on several lines CPython keeps where the method's name begins
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.end_col_offset == end_column:
            name = node.func
            if (name.end_lineno, (name.end_col_offset or 0) - len(name.attr.encode())) == (line, column):
                return node
    return None


class BreakObserver(Protocol):
    """Told of graph breaks. May look at everything, may change nothing."""

    def graph_break(self, fact: BreakFact, backend: object) -> None:
        """Tracing stopped. `backend` is what the function is compiled with, None where that is not known."""

    def uncompiled(self, fact: UncompiledFact, backend: object) -> None:
        """Dynamo leaves a function uncompiled."""

    def failed(self, what: str, details: str) -> None:
        """One of the calls above raised."""


class GraphObserver(Protocol):
    """Told of the graphs that Dynamo gives to backends."""

    def graph(self, gm: Any, output_graph: Any, guards: Callable[[], list[dict[str, Any]]]) -> None:
        """A backend is about to get a graph. `guards` reads its guards, once the compile has ended."""

    def failed(self, what: str, details: str) -> None:
        """The call above raised."""


def patches(observer: BreakObserver) -> list[Patch]:
    """The taps for breaks and for functions left uncompiled."""
    return _patches(Subscriber(observer))


def _patches(to: Subscriber[BreakObserver]) -> list[Patch]:
    return [
        Patch(
            "graph_breaks",
            "torch._dynamo.symbolic_convert",
            "InstructionTranslatorBase.log_graph_break",
            lambda original: _log_graph_break(to, original),
        ),
        Patch(
            "graph_breaks",
            "torch._dynamo.convert_frame",
            "exception_handler",
            lambda original: _exception_handler(to, original),
        ),
        Patch(
            "uncompiled",
            "torch._dynamo.convert_frame",
            "format_error_msg",
            lambda original: _format_error_msg(to, original),
        ),
    ]


def _log_graph_break(to: Subscriber[BreakObserver], original: Callable[..., Any]) -> Callable[..., Any]:
    def log_graph_break(self: Any, *args: Any, **kwargs: Any) -> Any:
        def tell() -> None:
            given = [*args, *kwargs.values()]
            exc = next((value for value in given if isinstance(value, BaseException)), None)
            if exc is None or getattr(exc, "logged", False):
                return
            reason = kwargs.get("reason") or next((value for value in args if isinstance(value, str)), "")
            output = self.output
            root = output.root_tx if output.root_tx is not None else self
            handling = str(reason).partition("\n")[0]
            named = frame_name(root.f_code, root.f_locals)
            fact = _break(exc, named, handling="" if handling == _text(exc).partition("\n")[0] else handling)
            to.observer.graph_break(fact, output.compiler_fn)

        to.tell("graph break", tell, None)
        with unseen:
            return original(self, *args, **kwargs)

    return log_graph_break


def _exception_handler(to: Subscriber[BreakObserver], original: Callable[..., Any]) -> Callable[..., Any]:
    """torch calls it with whatever ends the compile of a function; what the program will get is a break of its own."""

    def exception_handler(e: Any, code: Any, *args: Any, **kwargs: Any) -> Any:
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
        with unseen:
            return original(e, code, *args, **kwargs)

    return exception_handler


def _format_error_msg(to: Subscriber[BreakObserver], original: Callable[..., Any]) -> Callable[..., Any]:
    """torch calls it where it swallows an error, and runs the function uncompiled."""

    def format_error_msg(exc: Any, code: Any, *args: Any, **kwargs: Any) -> Any:
        def tell() -> None:
            is_break = type(exc).__name__ in BREAKS
            named = frame_name(code, _locals_of(exc, "_compile").get("locals") or {})
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
            to.observer.uncompiled(fact, _locals_of(exc, "_compile").get("compiler_fn"))

        to.tell("uncompiled function", tell, None)
        with unseen:
            return original(exc, code, *args, **kwargs)

    return format_error_msg


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
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_name == function:
            return trace.tb_frame.f_locals
        trace = trace.tb_next
    return {}


def frames_of(stack: Sequence[Any] | None) -> list[UserFrame]:
    """A traceback's summary as frames of the program, outermost first."""
    return [
        UserFrame(
            file=str(frame.filename),
            line=frame.lineno,
            function=str(frame.name),
            source=_statement(frame),
            **_code_of(frame),
            inside=whose(str(frame.filename)),
        )
        for frame in stack or ()
    ]


def _code_of(frame: Any) -> dict[str, str]:
    ends = (getattr(frame, name, None) for name in ("colno", "end_colno"))
    statement, code = code_at(str(frame.filename), frame.lineno, *ends)
    return {"statement": statement, "code": code}


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
    return _until_stopped(to, _patches(to), "graph breaks")


def tap_graphs(observer: GraphObserver) -> Callable[[], None]:
    """Tell `observer` of every graph from now on, until what is returned is called; torch is not imported for it."""
    to = Subscriber(observer)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_user_compiler(self: Any, gm: Any, example_inputs: Any) -> Any:
            to.tell("graph", lambda: observer.graph(gm, self, guard_reader()), None)
            with unseen:
                return original(self, gm, example_inputs)

        return call_user_compiler

    patch = Patch("dynamo_graph", "torch._dynamo.output_graph", "OutputGraph.call_user_compiler", make)
    return _until_stopped(to, [patch], "graphs")


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
