"""torch's log for graphprobe, and everybody else's view of it as before."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from conftest import Finished
from graphprobe.cli.main import main
from graphprobe.errors import UsageError
from graphprobe.internals import compiler_logs as logs_registry
from graphprobe.internals.compiler_logs import LOGGERS, USUAL, CompilerLogs, plan_from_text

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


@contextmanager
def handled(name: str, *, level: int | None = None) -> Iterator[list[str]]:
    """The lines that a handler of the program's gets at a logger; it and the logger's level are put back."""
    logger, handler, before = logging.getLogger(name), Kept(), logging.getLogger(name).level
    logger.addHandler(handler)
    if level is not None:
        logger.setLevel(level)
    try:
        yield handler.lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


@pytest.fixture
def listen() -> Iterator[Callable[..., tuple[CompilerLogs, list[str], dict[str, list[str]]]]]:
    """Starts `CompilerLogs` for a `--logs` text; the lines come without what stands before the message."""
    made: list[CompilerLogs] = []

    def start(text: str | None = None) -> tuple[CompilerLogs, list[str], dict[str, list[str]]]:
        main: list[str] = []
        files: dict[str, list[str]] = {}

        def to_file(name: str, line: str) -> None:
            files.setdefault(name, []).append(line.split("] ", 1)[-1])

        def to_main(_: str, line: str) -> None:
            main.append(line.split("] ", 1)[-1])

        made.append(CompilerLogs(logging.INFO, to_main, plan=plan_from_text(text), file_sink=to_file))
        made[-1].start()
        return made[-1], main, files

    yield start
    for logs in made:
        logs.stop()


def test_levels_handlers_filters_and_methods_come_back(listen: Any) -> None:
    for name in ("deep.inside", "__artifact"):
        logging.getLogger(f"{FAMILY}.{name}")
    before = state()
    logs, *_ = listen()
    assert state() != before
    logs.start()
    for _ in range(2):
        logs.stop()
        assert state() == before


def test_takes_what_the_user_does_not_see(listen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    logger, child = logging.getLogger(FAMILY), logging.getLogger(f"{FAMILY}.child")
    monkeypatch.setattr(logger, "propagate", True)
    with handled("torch") as early, handled(f"{FAMILY}.child") as below:
        _, lines, _ = listen()
        with handled(FAMILY) as late:
            child.info("a detail %d", 1)
            logger.warning("a warning")
            logging.getLogger("torch.nn").info("not the compiler's")
    assert lines == ["a detail 1", "a warning"]
    assert (early, late, below) == (["a warning"], ["a warning"], [])


def test_a_filter_of_the_programs_is_not_asked_about_more_than_before(listen: Any) -> None:
    asked: list[str] = []

    def note(record: logging.LogRecord) -> bool:
        asked.append(record.getMessage())
        return True

    logger = logging.getLogger(FAMILY)
    logger.addFilter(note)
    try:
        _, lines, _ = listen()
        logger.info("more")
        logger.error("as before")
    finally:
        logger.removeFilter(note)
    assert asked == ["as before"]
    assert len(lines) == 2


def test_a_level_below_ours_hides_nothing(listen: Any) -> None:
    with handled(FAMILY, level=logging.DEBUG) as seen:
        _, lines, _ = listen()
        logging.getLogger(FAMILY).debug("fine")
        logging.getLogger(FAMILY).info("coarse")
    assert (seen, lines) == (["fine", "coarse"], ["coarse"])


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO, logging.ERROR])
def test_a_level_that_the_program_sets_meanwhile_is_its_own(level: int, listen: Any) -> None:
    logger = logging.getLogger(FAMILY)
    with handled(FAMILY) as seen:
        logs, *_ = listen()
        logger.setLevel(level)
        logger.info("shown if the program wants it")
        # The next compile listens again; the program's view stays.
        logs.start()
        logger.info("again")
        logger.error("always")
        logs.stop()
        assert logger.level == level
    wanted = ["shown if the program wants it", "again"] if level <= logging.INFO else []
    assert seen == [*wanted, "always"]


@pytest.mark.parametrize(
    ("owner", "name"), [("child", "child"), ("between", "between.sub.__joint_graph")], ids=["itself", "an artifact"]
)
def test_a_level_of_the_users_below_the_family_decides(owner: str, name: str, listen: Any) -> None:
    """TORCH_LOGS=+aot sets a level between the family and the artifact."""
    with handled(f"{FAMILY}.{owner}", level=logging.DEBUG) as seen:
        listen()
        logging.getLogger(f"{FAMILY}.{name}").info("a whole graph")
        logging.getLogger(f"{FAMILY}.{name}").debug("in detail")
    assert seen == ["a whole graph", "in detail"]


def test_artifacts_stay_off_and_a_disabled_logger_says_nothing(listen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = logging.getLogger(f"{FAMILY}.module.__graph_code")
    _, lines, _ = listen()
    assert not artifact.isEnabledFor(logging.INFO)
    artifact.info("a whole graph")
    monkeypatch.setattr(logging.getLogger(FAMILY), "disabled", True)
    logging.getLogger(FAMILY).error("unheard")
    assert lines == []


def test_a_record_without_a_text_and_records_untouched(listen: Any, capsys: pytest.CaptureFixture[str]) -> None:
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
        _, lines, _ = listen()
        logger.info("%s", Textless())
        try:
            raise KeyError("x")
        except KeyError:
            logger.exception("with a traceback")
    finally:
        logger.removeHandler(handler)
    assert "ValueError('no text')" in lines[0] and "KeyError" in lines[1]
    assert "Logging error" not in capsys.readouterr().err
    assert [("message" in record, record["exc_text"]) for record in seen] == [(False, None)]


def test_each_file_holds_the_lines_of_its_component_and_only_these(listen: Any) -> None:
    _, main, files = listen("dynamo=debug,inductor=warning,aot=info,+graph_breaks")
    dynamo, inductor, aot = (logging.getLogger(f"torch.{n}.x") for n in ("_dynamo", "_inductor", "_functorch"))
    breaks, off = (logging.getLogger(f"torch._dynamo.x.__{n}") for n in ("graph_breaks", "bytecode"))
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


def test_a_component_at_debug_brings_its_artifacts_each_into_a_file_of_its_own(listen: Any) -> None:
    _, main, files = listen("dynamo=debug,inductor=info")
    for name in ("torch._dynamo.x.__graph_code", "torch._dynamo.x.__bytecode", "torch._inductor.x.__post_grad_graphs"):
        logging.getLogger(name).debug("from %s", name)
    assert files == {"graph_code": ["from torch._dynamo.x.__graph_code"]}
    assert main == []


def test_one_component_inside_another(listen: Any) -> None:
    _, _, files = listen("torch=warning,torch._dynamo.guards=debug,dynamo=info")
    logging.getLogger("torch._dynamo.guards").debug("g")
    logging.getLogger("torch._dynamo.other").info("d")
    logging.getLogger("torch.nn.modules").warning("t")
    assert files == {"torch._dynamo.guards": ["g"], "dynamo": ["d"], "torch": ["t"]}


def test_with_files_the_program_sees_and_finds_what_it_did(listen: Any) -> None:
    import torch._dynamo  # noqa: F401

    artifact = "torch._dynamo.convert_frame.__bytecode"
    with handled("torch") as seen, handled(artifact) as below:
        before = state()
        logs, _, files = listen("verbose,+bytecode,torch=debug")
        logging.getLogger(artifact).debug("op by op")
        logging.getLogger("torch._dynamo.x").debug("fine")
        logging.getLogger("torch.somewhere").info("fine")
        logging.getLogger("torch.somewhere").warning("shown")
        logs.stop()
        assert state() == {**before, **{n: s for n, s in state().items() if n not in before}}
    assert (seen, below) == (["shown"], [])
    assert files["bytecode"] == ["op by op"]


def test_an_artifact_logger_that_comes_later_is_heard_too_and_given_back(listen: Any) -> None:
    from torch._logging import getArtifactLogger

    logs, main, files = listen("+graph_breaks")
    asked = getArtifactLogger("torch._dynamo.only_in_this_test", "graph_breaks")
    other = getArtifactLogger("torch._dynamo.only_in_this_test", "graph_code")
    asked.debug("b")
    other.info("a graph")
    assert (files, main) == ({"graph_breaks": ["b"]}, [])
    logs.stop()
    assert (asked.level, other.level) == (logging.NOTSET, logging.NOTSET)


@pytest.mark.parametrize("artifact", ["recompiles", "recompiles_verbose"])
def test_an_artifact_that_torch_looks_up_in_its_own_state_is_heard(artifact: str, listen: Any) -> None:
    import torch
    from torch._dynamo.guards import is_recompiles_enabled

    compiled = torch.compile(lambda x: x + 1, backend="eager")
    with handled("torch._dynamo") as shown:
        logs, _, files = listen(f"+{artifact}")
        for n in (3, 5):
            compiled(torch.ones(n))
        logs.stop()
    assert list(files) == [artifact] and any("size mismatch at index 0" in line for line in files[artifact])
    assert not shown and not is_recompiles_enabled(), "the program sees none of it"


def test_verbose_keeps_the_traceback_that_torch_leaves_out(listen: Any) -> None:
    breaks = logging.getLogger("torch._dynamo.x.__graph_breaks")
    for level in ("debug", "verbose"):
        logs, _, files = listen(f"dynamo={level}")
        try:
            raise KeyError("inside torch")
        except KeyError:
            breaks.debug("broke", exc_info=True)
        logs.stop()
        (line,) = files["graph_breaks"]
        assert ("KeyError: 'inside torch'" in line) is (level == "verbose")
        assert ("Stack (most recent call last)" in line and __file__ in line) is (level == "verbose")


def test_while_compiling_a_line_carries_the_compiles_id(listen: Any) -> None:
    import torch

    logs, _, files = listen("dynamo=info")
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    logs.stop()
    (line,) = [line for line in files["dynamo"] if "start tracing" in line]
    assert line.startswith("[") and "/0] Step " in line


def levels(text: str) -> dict[str, int]:
    return {route.name: route.level for route in plan_from_text(text).routes}


def test_one_level_is_for_the_usual_components_and_names_go_before_it() -> None:
    assert levels("info") == dict.fromkeys(USUAL, logging.INFO)
    assert levels("debug, dynamo=error") == {**dict.fromkeys(USUAL, logging.DEBUG), "dynamo": logging.ERROR}
    assert plan_from_text("verbose").verbose and not plan_from_text("debug").verbose
    assert plan_from_text(None).routes == ()


def test_torchs_own_way_to_write_it() -> None:
    plan = plan_from_text("+dynamo,-aot,inductor,graph_breaks,+recompiles,all=error")
    expected = {"dynamo": logging.DEBUG, "aot": logging.ERROR, "inductor": logging.INFO, "torch": logging.ERROR}
    assert {route.name: route.level for route in plan.routes} == expected
    assert plan.artifacts == {"graph_breaks", "recompiles"}


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("dynamo=degub", "'degub' is no level", "debug"),
        ("+graph_brakes", "torch has no log named 'graph_brakes'", "graph_breaks"),
        ("dinamo=info", "torch has no log named 'dinamo'", "dynamo"),
        ("dynamo=info,dynamo=debug", "dynamo has two levels, info and debug", ""),
        ("info,debug", "two levels", ""),
        ("recompiles=info", "recompiles is an artifact", "+recompiles"),
        ("+dynamo=debug", "two ways to say one thing", ""),
        ("info,,debug", "nothing between two commas", "with commas between"),
        ("dynamo debug", "'dynamo debug' is no setting", "NAME=LEVEL"),
        ("torch.no_such_module", "torch has no log named", ""),
    ],
)
def test_mistakes(text: str, says: str, hint: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        plan_from_text(text)
    assert hint in caught.value.hint and text in str(caught.value)


def test_names_read_from_the_source_are_torchs_own() -> None:
    import torch._logging  # noqa: F401

    read, asked = logs_registry._from_source(), logs_registry._from_torch()
    assert read is not None and len(read.artifacts) > 20
    assert read.components == asked.components
    assert dict(sorted(read.artifacts.items())) == asked.artifacts


ASKED = """
import sys
from graphprobe.internals.compiler_logs import plan_from_text
plan_from_text("debug,+guards")
print("torch" in sys.modules)
"""


def test_asking_does_not_import_torch_and_a_mistake_makes_no_folder(
    run_python: Callable[..., Finished], tmp_path: Path
) -> None:
    assert run_python("-c", ASKED).out == "False\n"
    done = CliRunner().invoke(main, ["run", "--out", str(tmp_path), "--logs", "dynamo=loud", "-c", "print(1)"])
    assert (done.exit_code, done.stdout, list(tmp_path.iterdir())) == (2, "", [])
    assert "'loud' is no level" in done.stderr
