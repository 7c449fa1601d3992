"""torch's log for graphprobe, and everybody else's view of it as before."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from graphprobe.internals.logs.compiler_logs import LOGGERS, CompilerLogs
from graphprobe.internals.logs.log_plan import plan_from_text

FAMILY = "torch._dynamo"


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def state() -> dict[str, Any]:
    found: dict[str, Any] = {"handle": logging.Logger.handle}
    for name, logger in [("root", logging.root), *sorted(logging.root.manager.loggerDict.items())]:
        if isinstance(logger, logging.Logger):
            handlers = [(h, h.level, tuple(h.filters)) for h in logger.handlers]
            found[name] = (logger.level, type(logger.level), handlers, tuple(logger.filters), logger.disabled)
    return found


@pytest.fixture(autouse=True)
def own_levels() -> Iterator[None]:
    """Levels as in a process where nobody has set TORCH_LOGS; put back afterwards."""
    kept = {name: logging.getLogger(name).level for name in (*LOGGERS, "torch")}
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    yield
    for name, level in kept.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture
def logs() -> Iterator[tuple[CompilerLogs, list[str]]]:
    lines: list[str] = []
    made = CompilerLogs(logging.INFO, lambda name, line: lines.append(line))
    yield made, lines
    made.stop()


def test_levels_handlers_filters_and_methods_come_back(logs: tuple[CompilerLogs, list[str]]) -> None:
    for name in ("deep.inside", "__artifact"):
        logging.getLogger(f"{FAMILY}.{name}")
    before = state()
    logs[0].start()
    assert state() != before
    logs[0].start()
    logs[0].stop()
    assert state() == before
    logs[0].stop()
    assert state() == before


def test_takes_what_the_user_does_not_see(logs: tuple[CompilerLogs, list[str]]) -> None:
    early, late, below = Kept(), Kept(), Kept()
    logger, child = logging.getLogger(FAMILY), logging.getLogger(f"{FAMILY}.child")
    logging.getLogger("torch").addHandler(early)
    child.addHandler(below)
    propagate, logger.propagate = logger.propagate, True
    try:
        logs[0].start()
        logger.addHandler(late)
        child.info("a detail %d", 1)
        logger.warning("a warning")
        logging.getLogger("torch.nn").info("not the compiler's")
    finally:
        logger.propagate = propagate
        logging.getLogger("torch").removeHandler(early)
        logger.removeHandler(late)
        child.removeHandler(below)
    assert [line.split("] ")[1] for line in logs[1]] == ["a detail 1", "a warning"]
    assert early.lines == ["a warning"]
    assert late.lines == ["a warning"]
    assert below.lines == []


def test_a_filter_of_the_programs_is_not_asked_about_more_than_before(logs: tuple[CompilerLogs, list[str]]) -> None:
    asked: list[str] = []

    def note(record: logging.LogRecord) -> bool:
        asked.append(record.getMessage())
        return True

    logger = logging.getLogger(FAMILY)
    logger.addFilter(note)
    try:
        logs[0].start()
        logger.info("more")
        logger.error("as before")
    finally:
        logger.removeFilter(note)
    assert asked == ["as before"]
    assert len(logs[1]) == 2


def test_a_level_below_ours_hides_nothing(logs: tuple[CompilerLogs, list[str]]) -> None:
    logger, handler = logging.getLogger(FAMILY), Kept()
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    try:
        logs[0].start()
        logger.debug("fine")
        logger.info("coarse")
    finally:
        logger.removeHandler(handler)
    assert handler.lines == ["fine", "coarse"]
    assert [line.split("] ")[1] for line in logs[1]] == ["coarse"]


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO, logging.ERROR])
def test_a_level_that_the_program_sets_meanwhile_is_its_own(level: int, logs: tuple[CompilerLogs, list[str]]) -> None:
    logger, handler = logging.getLogger(FAMILY), Kept()
    logger.addHandler(handler)
    try:
        logs[0].start()
        logger.setLevel(level)
        logger.info("shown if the program wants it")
        # The next compile listens again; the program's view stays.
        logs[0].start()
        logger.info("again")
        logger.error("always")
    finally:
        logger.removeHandler(handler)
    wanted = ["shown if the program wants it", "again"] if level <= logging.INFO else []
    assert handler.lines == [*wanted, "always"]
    logs[0].stop()
    assert logger.level == level


def test_a_childs_own_level_decides(logs: tuple[CompilerLogs, list[str]]) -> None:
    child, handler = logging.getLogger(f"{FAMILY}.verbose_child"), Kept()
    child.setLevel(logging.DEBUG)
    child.addHandler(handler)
    try:
        logs[0].start()
        child.info("shown before, shown now")
        child.debug("this too")
    finally:
        child.removeHandler(handler)
        child.setLevel(logging.NOTSET)
    assert handler.lines == ["shown before, shown now", "this too"]


def test_artifacts_stay_off(logs: tuple[CompilerLogs, list[str]]) -> None:
    artifact = logging.getLogger(f"{FAMILY}.module.__graph_code")
    logs[0].start()
    assert not artifact.isEnabledFor(logging.INFO)
    artifact.info("a whole graph")
    assert logs[1] == []


def test_artifacts_below_a_level_of_the_users_stay_on(logs: tuple[CompilerLogs, list[str]]) -> None:
    """TORCH_LOGS=+aot sets a level between the family and the artifact."""
    between, artifact = logging.getLogger(f"{FAMILY}.between"), logging.getLogger(f"{FAMILY}.between.sub.__joint_graph")
    handler = Kept()
    between.setLevel(logging.DEBUG)
    between.addHandler(handler)
    try:
        logs[0].start()
        artifact.info("a whole graph")
        artifact.debug("in detail")
    finally:
        between.removeHandler(handler)
        between.setLevel(logging.NOTSET)
    assert handler.lines == ["a whole graph", "in detail"]


def test_a_record_without_a_text_and_records_untouched(
    logs: tuple[CompilerLogs, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    class Textless:
        def __str__(self) -> str:
            raise ValueError("no text")

    seen: list[dict[str, Any]] = []

    class Looking(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(dict(vars(record)))

    logger, handler = logging.getLogger(FAMILY), Looking()
    logger.handlers.insert(0, handler)  # before any that formats the record itself
    try:
        logs[0].start()
        logger.info("%s", Textless())
        try:
            raise KeyError("x")
        except KeyError:
            logger.exception("with a traceback")
    finally:
        logger.removeHandler(handler)
    assert "ValueError('no text')" in logs[1][0]
    assert "KeyError" in logs[1][1]
    assert "Logging error" not in capsys.readouterr().err
    assert [("message" in record, record["exc_text"]) for record in seen] == [(False, None)]


def test_a_disabled_logger_says_nothing(logs: tuple[CompilerLogs, list[str]]) -> None:
    logger = logging.getLogger(FAMILY)
    logs[0].start()
    logger.disabled = True
    try:
        logger.error("unheard")
    finally:
        logger.disabled = False
    assert logs[1] == []


Files = dict[str, list[str]]


@pytest.fixture
def kept() -> Iterator[Any]:
    """Makes `CompilerLogs` for a `--logs` text; the lines come without what stands before the message."""
    made: list[CompilerLogs] = []

    def listen(text: str, *, level: int = logging.INFO) -> tuple[CompilerLogs, list[str], Files]:
        main: list[str] = []
        files: Files = {}

        def to_file(name: str, line: str) -> None:
            files.setdefault(name, []).append(line.split("] ", 1)[-1])

        logs = CompilerLogs(
            level, lambda _, line: main.append(line.split("] ")[-1]), plan=plan_from_text(text), file_sink=to_file
        )
        made.append(logs)
        return logs, main, files

    yield listen
    for logs in made:
        logs.stop()


def test_each_file_holds_the_lines_of_its_component_and_only_these(kept: Any) -> None:
    logs, main, files = kept("dynamo=debug,inductor=warning,aot=info,+graph_breaks")
    dynamo, inductor, aot = (logging.getLogger(f"torch.{n}.x") for n in ("_dynamo", "_inductor", "_functorch"))
    breaks, off = (logging.getLogger(f"torch._dynamo.x.__{n}") for n in ("graph_breaks", "bytecode"))
    logs.start()
    dynamo.debug("d %d", 1)
    inductor.info("too fine")
    inductor.warning("i")
    aot.info("a")
    aot.debug("too fine")
    breaks.debug("b")
    off.debug("not asked for")
    logging.getLogger("torch.nn").error("nobody's")
    logging.getLogger("torch.fx.passes.x").error("fx was not asked for")
    assert files == {"dynamo": ["d 1"], "inductor": ["i"], "aot": ["a"], "graph_breaks": ["b"]}
    assert main == ["too fine", "i", "a"]


def test_a_component_at_debug_brings_its_artifacts_each_into_a_file_of_its_own(kept: Any) -> None:
    logs, main, files = kept("dynamo=debug,inductor=info")
    logs.start()
    for name in ("torch._dynamo.x.__graph_code", "torch._dynamo.x.__bytecode", "torch._inductor.x.__post_grad_graphs"):
        logging.getLogger(name).debug("from %s", name)
    assert files == {"graph_code": ["from torch._dynamo.x.__graph_code"]}
    assert main == []


def test_one_component_inside_another(kept: Any) -> None:
    logs, _, files = kept("torch=warning,torch._dynamo.guards=debug,dynamo=info")
    logs.start()
    logging.getLogger("torch._dynamo.guards").debug("g")
    logging.getLogger("torch._dynamo.other").info("d")
    logging.getLogger("torch.nn.modules").warning("t")
    assert files == {"torch._dynamo.guards": ["g"], "dynamo": ["d"], "torch": ["t"]}


def test_with_files_the_program_sees_and_finds_what_it_did(kept: Any) -> None:
    import torch._dynamo  # noqa: F401

    seen = Kept()
    top, artifact = logging.getLogger("torch"), logging.getLogger("torch._dynamo.convert_frame.__bytecode")
    top.addHandler(seen)
    artifact.addHandler(seen)
    before = state()
    try:
        logs, _, files = kept("verbose,+bytecode,torch=debug")
        logs.start()
        artifact.debug("op by op")
        logging.getLogger("torch._dynamo.x").debug("fine")
        logging.getLogger("torch.somewhere").info("fine")
        logging.getLogger("torch.somewhere").warning("shown")
        logs.stop()
        assert state() == {**before, **{n: s for n, s in state().items() if n not in before}}
    finally:
        top.removeHandler(seen)
        artifact.removeHandler(seen)
    assert seen.lines == ["shown"]
    assert files["bytecode"] == ["op by op"]


def test_an_artifact_logger_that_comes_later_is_heard_too_and_given_back(kept: Any) -> None:
    from torch._logging import getArtifactLogger

    logs, main, files = kept("+graph_breaks")
    logs.start()
    asked = getArtifactLogger("torch._dynamo.only_in_this_test", "graph_breaks")
    other = getArtifactLogger("torch._dynamo.only_in_this_test", "graph_code")
    asked.debug("b")
    other.info("a graph")
    assert (files, main) == ({"graph_breaks": ["b"]}, [])
    logs.stop()
    assert (asked.level, other.level) == (logging.NOTSET, logging.NOTSET)


@pytest.mark.parametrize("artifact", ["recompiles", "recompiles_verbose"])
def test_an_artifact_that_torch_looks_up_in_its_own_state_is_heard(artifact: str, kept: Any) -> None:
    import torch
    from torch._dynamo.guards import is_recompiles_enabled

    shown = Kept()
    logging.getLogger("torch._dynamo").addHandler(shown)
    compiled = torch.compile(lambda x: x + 1, backend="eager")
    logs, _main, files = kept(f"+{artifact}")
    logs.start()
    try:
        for n in (3, 5):
            compiled(torch.ones(n))
    finally:
        logs.stop()
        logging.getLogger("torch._dynamo").removeHandler(shown)
    assert list(files) == [artifact] and any("size mismatch at index 0" in line for line in files[artifact])
    assert not shown.lines and not is_recompiles_enabled(), "the program sees none of it"


def test_verbose_keeps_the_traceback_that_torch_leaves_out(kept: Any) -> None:
    breaks = logging.getLogger("torch._dynamo.x.__graph_breaks")
    for level in ("debug", "verbose"):
        logs, _, files = kept(f"dynamo={level}")
        logs.start()
        try:
            raise KeyError("inside torch")
        except KeyError:
            breaks.debug("broke", exc_info=True)
        logs.stop()
        (line,) = files["graph_breaks"]
        assert ("KeyError: 'inside torch'" in line) is (level == "verbose")
        assert ("Stack (most recent call last)" in line and __file__ in line) is (level == "verbose")


def test_while_compiling_a_line_carries_the_compiles_id(kept: Any) -> None:
    import torch

    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    logs, _, files = kept("dynamo=info")
    logs.start()
    torch.compile(f, backend="eager")(torch.ones(2))
    logs.stop()
    (line,) = [line for line in files["dynamo"] if "start tracing" in line]
    assert line.startswith("[") and "/0] Step " in line
