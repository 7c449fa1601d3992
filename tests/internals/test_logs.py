"""torch's log for graphprobe, and everybody else's view of it as before."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from graphprobe.internals.logs import LOGGERS, CompilerLogs

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
