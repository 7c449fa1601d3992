"""`pytest --graphprobe`: a failing test that called something compiled is run once more, with those calls diagnosed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shlex
import sys
from collections.abc import Callable, Generator, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from _pytest.runner import runtestprotocol

from graphprobe.findings import FunctionDiagnosis, ScriptDocument
from graphprobe.report.diagnosis import first_line_from, repros_from
from graphprobe.store.files import replace_file
from graphprobe.testing.assertion import NEW_FOLDER, CompiledDiffers

if TYPE_CHECKING:
    from graphprobe.findings import Diagnosis
    from graphprobe.internals.dynamo.compile_calls import CompileCalls, Compiled


Diagnoses = list[tuple[str, "Diagnosis"]]
"""Name of the function, and its diagnosis."""

DOCUMENT = "diagnosis.json"
TRACE_LINE = re.compile(r"^[A-Z]+ +torch\.__trace:.*\n?", re.M)
"""A line of torch's own trace log, which pytest captures: hundreds of them for one compile, and all without a text."""
NAME_BYTES = 120
"""Longest name of a test's folder; a longer one is cut, and ends in a digest of the whole."""


class CompileWatch:
    """Stands in for `torch.compile` from `install` on, also where torch is imported later.

    A call of a compiled function only sets `called`, until `diagnosing`.
    """

    def __init__(self, budget_s: float | None, *, exact: bool = False) -> None:
        """`exact`: results that are right and differ in their last bits are a fault."""
        self.called = False
        self._budget_s, self._exact = budget_s, exact
        self._calls: CompileCalls | None = None
        self._before: Callable[[Compiled, tuple[Any, ...], dict[str, Any]], None] | None = None
        self._touched: dict[int, Compiled] = {}

    def install(self) -> None:
        """Put it in place; the second time does nothing. Imports no torch."""
        if self._calls is None:
            from graphprobe.internals.dynamo.compile_calls import CompileCalls

            self._calls = CompileCalls(self._on_call)
            self._calls.install()

    def remove(self) -> None:
        """Give torch its function back."""
        if self._calls is not None:
            self._calls.remove()
            self._calls = None

    def begin(self) -> None:
        """A test begins."""
        self.called = False
        if self._calls is not None:
            self._calls.compiled.clear()  # it would keep every model of the suite alive

    @contextlib.contextmanager
    def diagnosing(self, folder: Path) -> Iterator[Diagnoses]:
        """Diagnose each call of a compiled function with new shapes before it is made; `folder` gets the dossiers."""
        from graphprobe.diagnose.script import ScriptOptions, watcher_of
        from graphprobe.settings.limits import TimeBudget

        watcher = watcher_of(ScriptOptions(budget=TimeBudget(self._budget_s), out=folder, exact=self._exact))
        self._before = watcher.before
        try:
            yield watcher.diagnoses
        finally:
            self._before = None
            for compiled in self._touched.values():
                # A function of the whole module may be called by the next test, too.
                compiled.kept.clear()
                compiled.uncompiled = False
            self._touched.clear()

    def _on_call(self, compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.called = True
        if self._before is not None:
            self._touched[id(compiled)] = compiled
            self._before(compiled, args, kwargs)


class RandomStates:
    """The states of the random generators of Python, and of numpy and torch where they are imported."""

    def __init__(self) -> None:
        self._python = random.getstate()
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        self._numpy = numpy.random.get_state() if numpy is not None else None
        self._torch = torch.get_rng_state() if torch is not None and hasattr(torch, "get_rng_state") else None

    def restore(self) -> None:
        """Set them as they were."""
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        if self._torch is not None:
            sys.modules["torch"].set_rng_state(self._torch)


class Told(msgspec.Struct):
    """What the summary says of one failing test.

    Attributes:
        test: its node id.
        verdict: `fault`, `undecided`, `healthy`.
        text: one line.
        repros: scripts that show the faults.
        folder: with everything, empty where there is none.
    """

    test: str
    verdict: str
    text: str
    repros: list[str] = []
    folder: str = ""


class FailingTests:
    """The plugin of one session; with xdist there is one in each worker, and one that only tells the summary."""

    def __init__(self, config: pytest.Config, watch: CompileWatch, out: Path) -> None:
        self.config, self.watch, self.out = config, watch, out
        self.base = str(config.invocation_params.dir) + os.sep
        self.told: list[Told] = []
        self._failed: set[str] = set()
        self._again = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
        """Around everything else, so that limits of time of other plugins are off when the test runs once more."""
        self.watch.begin()
        self._failed.discard(item.nodeid)
        states = RandomStates()
        before = NEW_FOLDER.set(lambda: folder_of(self.out, item.nodeid))
        try:
            result = yield
        finally:
            NEW_FOLDER.reset(before)
        if item.nodeid in self._failed and self.watch.called:
            self._diagnose(item, nextitem, states)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Remembers which tests failed; the error of `assert_compiles_like_eager` comes with a diagnosis."""
        report = yield
        report.sections = without_trace(report.sections)
        if report.failed and report.when in ("setup", "call") and not self._again:
            error = call.excinfo.value if call.excinfo is not None else None
            if isinstance(error, CompiledDiffers):
                self._tell(item.nodeid, [(error.name, error.diagnosis)], None)
            else:
                self._failed.add(item.nodeid)
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """A worker of xdist hands over what it found."""
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            output["graphprobe"] = [msgspec.to_builtins(one) for one in self.told]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Take what a worker found; one that was killed hands over nothing."""
        found = getattr(node, "workeroutput", {}).get("graphprobe", [])
        self.told += msgspec.convert(found, list[Told])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
        """The last section: behind the short summary of pytest."""
        yield
        if not self.told:
            return
        terminalreporter.section("graphprobe")
        marks = {"fault": {"red": True}, "undecided": {"yellow": True}, "healthy": {"green": True}}
        for one in sorted(self.told, key=lambda told: list(marks).index(told.verdict), reverse=True):
            terminalreporter.write(one.verdict.upper(), **marks[one.verdict])
            terminalreporter.write_line(f" {one.test}: {one.text}")
            for repro in one.repros:
                terminalreporter.write_line(f"  python {shlex.quote(repro)}")
            if one.verdict == "undecided" and one.folder:
                terminalreporter.write_line(f"  {one.folder}")

    def pytest_unconfigure(self) -> None:
        """Give torch its function back."""
        self.watch.remove()

    def _diagnose(self, item: pytest.Item, nextitem: pytest.Item | None, states: RandomStates) -> None:
        self._announce(item.nodeid)
        folder = folder_of(self.out, item.nodeid)
        torch = sys.modules.get("torch")
        if torch is not None and "torch._dynamo" in sys.modules:
            # What an earlier test left compiled must not stand in for what this one compiles.
            torch.compiler.reset()
        states.restore()
        self._again = True
        diagnoses: Diagnoses = []
        try:
            with self.watch.diagnosing(folder) as diagnoses:
                reports = runtestprotocol(item, log=False, nextitem=nextitem)
        except KeyboardInterrupt:
            if any(diagnosis.verdict == "fault" for _, diagnosis in diagnoses):
                self._tell(item.nodeid, diagnoses, folder)
            else:
                self.told.append(Told(item.nodeid, "undecided", "its diagnosis was interrupted"))
            raise
        finally:
            self._again = False
        self._tell(item.nodeid, diagnoses, folder, again=any(report.failed for report in reports))

    def _tell(self, test: str, diagnoses: Diagnoses, folder: Path | None, *, again: bool = True) -> None:
        verdicts = [diagnosis.verdict for _, diagnosis in diagnoses]
        if not diagnoses:
            told = Told(test, "undecided", "it called something compiled, but not when it was run once more")
        elif "fault" in verdicts or "undecided" in verdicts:
            verdict = "fault" if "fault" in verdicts else "undecided"
            name, first = next(one for one in diagnoses if one[1].verdict == verdict)
            text = f"{name}: {first_line_from(first)}"
            repros = [self._short(repro) for _, diagnosis in diagnoses for repro in repros_from(diagnosis)]
            told = Told(test, verdict, self._short(text), repros)
        else:
            names = ", ".join(dict.fromkeys(name for name, _ in diagnoses))
            told = Told(test, "healthy", f"its compiled calls are healthy ({names}): it fails for another reason")
        if not again and told.verdict == "healthy":
            # After a crash the test has gone on uncompiled: of a fault this would say nothing.
            told.text += ", such as chance or what an earlier test left compiled: the second time it passed"
        if folder is not None and diagnoses:
            told.folder = self._short(str(folder))
            folder.mkdir(parents=True, exist_ok=True)
            found = [FunctionDiagnosis.of(name, diagnosis) for name, diagnosis in diagnoses]
            document = ScriptDocument(target=test, diagnoses=found).to_json()
            text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
            replace_file(folder / DOCUMENT, text.encode())
        self.told.append(told)

    def _short(self, text: str) -> str:
        """Paths below the folder in which pytest was called are shown relative to it."""
        return text.replace(self.base, "")

    def _announce(self, test: str) -> None:
        """On the terminal, as it takes a minute or so; a worker of xdist has none."""
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        capture = self.config.pluginmanager.get_plugin("capturemanager")
        if reporter is None or hasattr(self.config, "workeroutput"):
            return
        with capture.global_and_fixture_disabled() if capture is not None else contextlib.nullcontext():
            reporter.ensure_newline()
            reporter.write_line(f"graphprobe: diagnosing the compiled calls of {test} …")


def without_trace(sections: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """What pytest shows below a failure, without the lines of torch's trace log."""
    kept = [(head, TRACE_LINE.sub("", text) if head.startswith("Captured log") else text) for head, text in sections]
    return [(head, text) for head, text in kept if text.strip() or not head.startswith("Captured log")]


def folder_of(out: Path, test: str) -> Path:
    """A folder for a test that does not exist yet: `test_net.py-test_relu`, then with `-2`, `-3` behind it."""
    name = re.sub(r"[^\w.\[\]=-]+", "-", test.replace("::", "-")).strip("-.") or "test"
    if len(name.encode()) > NAME_BYTES:
        digest = blake2b(test.encode(), digest_size=4).hexdigest()
        name = name.encode()[:NAME_BYTES].decode("utf-8", "ignore") + "-" + digest
    number, folder = 1, out / name
    while folder.exists():
        number += 1
        folder = out / f"{name}-{number}"
    return folder
