"""What `graphprobe` offers in Python: its names, their types, what they do with good and bad arguments, its errors."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
import traceback
import typing
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import graphprobe
from cli.calling import call, command_of
from conftest import ROOT, Finished
from doc_session import blocks_of
from graphprobe import errors
from graphprobe.backends.wrap import WHOLE_RUN
from graphprobe.cli.main import COMMANDS
from graphprobe.errors import GraphprobeError, UsageError
from graphprobe.faces import function_of
from graphprobe.settings import TABLE
from store.dump_helpers import OP, PLACE, new_writer, value

PACKAGE = ROOT / "src" / "graphprobe"

FUNCTIONS = """
    assert_compiles_like_eager compare diagnose diagnose_passes disable drift dump enable explain export faulty
    get_backend observe_pass open_dump open_run profile recompiles reduce report step trace watch wrap
""".split()
TYPES = """
    ApiDumper Call CallDump CallSlot CaseReduction Comparison CompileProfiler CompilerConfig Diagnosis Drift Explanation
    Exported Faulty Finding GraphCalls Recompiles Run Watching Wrapped
""".split()
ERRORS = """
    ArtifactNotFoundError CompiledDiffers DumpConfigError GraphDiedError GraphRaisedError GraphprobeError
    GraphprobeWarning NotComparableError OperatorSchemaError OverflowFoundError PlantedFault RunNotFoundError
    SchemaError ScriptingError SettingError UnsupportedTorchError UsageError
""".split()
MODULES = "backends compat ops scope".split()
PACKAGES = "compare diagnose export reduce report watch".split()
"""Functions whose names are those of packages."""


def test_the_list() -> None:
    """A name that goes breaks programs: docs/stability.md says how that is done."""
    assert graphprobe.__all__ == sorted([*FUNCTIONS, *TYPES, *ERRORS, *MODULES, "__version__"])


@pytest.mark.parametrize("name", [*FUNCTIONS, *TYPES, *ERRORS, *MODULES])
def test_a_name_is_there_and_described(name: str) -> None:
    found = getattr(graphprobe, name)
    assert isinstance(found, ModuleType) == (name in MODULES + PACKAGES)
    assert callable(found) == (name not in MODULES)
    assert inspect.getdoc(found)
    assert name in dir(graphprobe)
    assert getattr(graphprobe, name) is found


def test_types_are_those_that_a_program_gets() -> None:
    """What mypy and editors are told: names, and the modules that they come from."""
    (block,) = (
        node
        for node in ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8")).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    lines = [line for line in block.body if isinstance(line, ast.ImportFrom) and line.module is not None]
    assert len(lines) == len(block.body)
    told = {alias.name: line.module for line in lines for alias in line.names if alias.asname in (None, alias.name)}
    assert told.keys() == set(graphprobe.__all__) - {"__version__"}
    for name, module in told.items():
        found = getattr(graphprobe, name)
        if name in PACKAGES:
            found = function_of(found)
        assert found is getattr(importlib.import_module(module), name), name


def test_every_error_is_public() -> None:
    classes = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                classes[node.name] = {ast.unparse(base) for base in node.bases}
    ours = {"GraphprobeError", "GraphprobeWarning"}
    while more := {name for name, bases in classes.items() if bases & ours} - ours:
        ours |= more
    assert len(ours) > 10
    assert sorted(ours - set(graphprobe.__all__)) == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_function_gives_can_be_named(name: str) -> None:
    """Types of ours in a return annotation are public."""
    found = getattr(graphprobe, name)
    found = inspect.unwrap(function_of(found) if name in PACKAGES else found)
    if isinstance(found, type):
        return
    (node,) = (
        node
        for node in ast.walk(ast.parse(Path(inspect.getfile(found)).read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name == name
    )
    assert node.returns is not None
    words = {part.id for part in ast.walk(node.returns) if isinstance(part, ast.Name)}
    assert words - {"Any", "Callable", "Iterator", "None", "Path"} <= set(graphprobe.__all__)


DOTTED = re.compile(r"(?<![\w./-])graphprobe(?:\.\w+)+")
FROM = re.compile(r"\b(?:from|import) (graphprobe(?:\.\w+)+)")
SHOWN_MODULES = {"graphprobe.compat.ptdbg", "graphprobe.compat.torchair", *(f"graphprobe.{name}" for name in MODULES)}


def is_module(name: str) -> bool:
    path = PACKAGE.joinpath(*name.split(".")[1:])
    return path.is_dir() or path.with_suffix(".py").is_file()


def private_modules(text: str) -> list[str]:
    """Modules that are no part of the public API, wherever the text names or imports one."""
    found = [name for name in FROM.findall(text) if name not in SHOWN_MODULES]
    for name in DOTTED.findall(text):
        parts = name.split(".")
        prefixes = [".".join(parts[:end]) for end in range(2, len(parts) + 1)]
        modules = [prefix for prefix in prefixes if is_module(prefix)]
        if modules and modules[-1] not in SHOWN_MODULES | {f"graphprobe.{name}" for name in PACKAGES}:
            found.append(modules[-1])
    return found


def private_names(program: str) -> list[str]:
    """Names that a program takes from `graphprobe`, or from one of its public modules, and that are not public."""
    found = []
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.ImportFrom) and node.module in {"graphprobe", *SHOWN_MODULES}:
            module, names = node.module, [alias.name for alias in node.names if alias.name != "*"]
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in {"graphprobe", *SHOWN_MODULES}:
            module, names = ast.unparse(node.value), [node.attr]
        else:
            continue
        public = getattr(importlib.import_module(module), "__all__", ["ptdbg", "torchair"])
        found += [f"{module}.{name}" for name in names if name not in public]
    return found


DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*.py"))]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_documents_use_public_names_only(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert private_modules(text) == []
    programs = [text] if path.suffix == ".py" else [b.text for b in blocks_of(text) if b.language == "python"]
    assert [name for program in programs for name in private_names(program)] == []


def test_docstrings_name_public_modules_only() -> None:
    texts = {name: inspect.getdoc(getattr(graphprobe, name)) or "" for name in FUNCTIONS + TYPES + ERRORS + MODULES}
    texts["graphprobe"] = inspect.getdoc(graphprobe) or ""
    texts |= {f"--help of {name}": command_of(name).help or "" for name in COMMANDS}
    assert {name: private_modules(text) for name, text in texts.items() if private_modules(text)} == {}


def test_the_finder_of_private_names() -> None:
    for text, module in {
        "from graphprobe.probe.active import disable": "graphprobe.probe.active",
        "import graphprobe.export.forms as forms": "graphprobe.export.forms",
        "from graphprobe.compare import run": "graphprobe.compare",
        "see `graphprobe.export.forms.export(...)`": "graphprobe.export.forms",
        "an `graphprobe.testing.assertion.CompiledDiffers`": "graphprobe.testing.assertion",
        "in graphprobe.settings.": "graphprobe.settings",
    }.items():
        assert set(private_modules(text)) == {module}
    good = "import graphprobe\nfrom graphprobe import compare, ops\nfrom graphprobe.compat.ptdbg import *\n"
    good += "graphprobe.compare(candidate=1)\ngraphprobe.ops.save(x)\nfrom graphprobe.compat import torchair\n"
    assert private_modules(good) == [] and private_names(good) == []
    assert private_modules("$.graphprobe.max_bytes, src/graphprobe/store/reader.py, graphprobe.dump_schema") == []
    assert private_names("from graphprobe import settings") == ["graphprobe.settings"]
    assert private_names("graphprobe.compar(1)") == ["graphprobe.compar"]
    assert private_names("graphprobe.ops.destination") == ["graphprobe.ops.destination"]


def test_the_page_on_stability_names_them_all() -> None:
    rows = re.findall(r"^\| (`.+?) \|", (ROOT / "docs" / "stability.md").read_text(encoding="utf-8"), re.M)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == graphprobe.__all__


ONE_NAME = """
import sys
import graphprobe
names = sys.argv[1:]
before = [getattr(graphprobe, name) for name in names]
assert "torch" not in sys.modules
import graphprobe.export.forms as forms
import graphprobe.diagnose.settings
from graphprobe import export
assert [getattr(graphprobe, name) for name in names] == before
assert graphprobe.export is export and callable(export) and graphprobe.export.forms is forms
"""


def test_a_function_stays_one_when_its_package_is_imported(run_python: Callable[..., Finished]) -> None:
    done = run_python("-c", ONE_NAME, *PACKAGES)
    assert done.code == 0, done.err


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_is_described_as_its_function(name: str) -> None:
    package = getattr(graphprobe, name)
    function = function_of(package)
    assert inspect.isfunction(function)
    assert inspect.signature(package) == inspect.signature(function)
    assert inspect.getdoc(package) == inspect.getdoc(function)


TYPED = """
import graphprobe
with graphprobe.compare(candidate="a", reference="b") as comparison:
    reveal_type(comparison)
reveal_type(graphprobe.reduce("case"))
reveal_type(graphprobe.report("run"))
reveal_type(graphprobe.open_run("run"))
reveal_type(graphprobe.open_dump("dump"))
reveal_type(graphprobe.diagnose(len, "x"))
reveal_type(graphprobe.diagnose(len, "x").findings)
reveal_type(graphprobe.export("a", "b", "onnx-text"))
reveal_type(graphprobe.faulty(op="relu"))
graphprobe.enable("out", save_inputs=True, graph_dump="py", max_bytes="2GiB", logs=["dynamo"])
graphprobe.enable(save_input=True)
graphprobe.trace(graph_dump="svg")
graphprobe.wrap("inductor", max_bytes=1)
graphprobe.faulty(kind="nan")
graphprobe.compare("a", "b")
def name(diagnosis: graphprobe.Diagnosis, finding: graphprobe.Finding, error: graphprobe.DumpConfigError) -> str:
    return error.where
"""


@pytest.mark.heavy
def test_mypy_knows_the_types(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TYPED)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", "program.py"]
    config = tmp_path / "mypy.ini"
    config.write_text(f"[mypy]\nmypy_path = {ROOT / 'src'}\nfollow_imports = silent\n")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False)
    lines = done.stdout.splitlines()
    revealed = [line.partition("is ")[2].strip('"').rpartition(".")[2].rstrip("]") for line in lines if "note:" in line]
    assert [name for name in revealed if name in TYPES + ["Path"]] == (
        ["Comparison", "CaseReduction", "Path", "Run", "CallDump", "Diagnosis", "Finding", "Exported", "Faulty"]
    ), done.stdout
    wrong = [line.partition(" error: ")[2] for line in lines if " error: " in line]
    kinds = [text.rpartition("[")[2] for text in wrong]
    assert kinds == ["call-arg]", "arg-type]", "call-arg]", "call-arg]", "call-arg]"]
    assert "save_input" in wrong[0] and "max_bytes" in wrong[2], wrong


def api_dump(path: Path, *, weight: float = 1.0) -> Path:
    import torch

    x, matrix = torch.arange(6.0).view(2, 3), torch.nn.Parameter(torch.full((3, 3), weight))
    with graphprobe.dump(path, data="tensor"):
        torch.relu(torch.nn.functional.linear(x, matrix))
    return path


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A dump of each format; no test may change them."""
    folder = tmp_path_factory.mktemp("dumps")
    writer = new_writer(folder / "graphs")
    writer.submit(OP, PLACE, [value("input.0", np.arange(3.0)), value("output.0", np.float32([[1, 2]]))])
    writer.close()
    msprobe = ROOT / "tests" / "data" / "msprobe" / "tensor"
    assert call("convert", msprobe, "--to", "ptdbg", "--out", folder / "dump.pkl").exit_code == 0
    return {
        "graphprobe-api": api_dump(folder / "calls"),
        "graphprobe-graph": folder / "graphs",
        "msprobe": msprobe,
        "ptdbg": folder / "dump.pkl",
    }


@pytest.mark.parametrize("form", ["graphprobe-api", "graphprobe-graph", "msprobe", "ptdbg"])
def test_open_dump_opens_any_dump(form: str, dumps: dict[str, Path]) -> None:
    for asked in (dumps[form], str(dumps[form])):
        dump = graphprobe.open_dump(asked)
        assert dump.format == form
        (rank,) = dump.ranks()
        calls = [call for step in dump.steps(rank) for call in dump.calls(rank, step)]
        assert calls and all(isinstance(call, graphprobe.Call) for call in calls)
        slots = [(call, slot) for call in calls for slot in call.slots if slot.value and slot.meta is not None]
        assert slots
        assert all(dump.values(call, slot).size for call, slot in slots)


def test_of_compiled_graphs_everything_is_told(dumps: dict[str, Path]) -> None:
    dump = graphprobe.open_dump(dumps["graphprobe-graph"])
    assert isinstance(dump, graphprobe.GraphCalls)
    (op,) = dump.ops()
    assert (op.record.op.fx_nodes, op.record.place.model_name) == (("add_1", "relu"), "ResNet-50")
    np.testing.assert_array_equal(op.values()["input.0"].array(), np.arange(3.0))
    assert list(dump.stats()) == []
    for part in (op.path, op.path.parent, op.path.parent.parent):
        again = graphprobe.open_dump(part)
        assert isinstance(again, graphprobe.GraphCalls)
        assert [one.record for one in again.ops()] == [op.record]
        assert len(list(again.calls(0, 5))) == 1


def test_compare(dumps: dict[str, Path], tmp_path: Path) -> None:
    reference, candidate = dumps["graphprobe-api"], api_dump(tmp_path / "wrong", weight=1.5)
    with graphprobe.compare(candidate=reference, reference=str(reference)) as same:
        assert isinstance(same, graphprobe.Comparison)
        assert same.summary.outcome == "same"
    told: list[str] = []
    opened = graphprobe.open_dump(candidate)
    with graphprobe.compare(candidate=opened, reference=reference, jobs=1, on_progress=told.append) as found:
        assert found.summary.outcome == "different"
        assert (found.summary.candidate.title, found.summary.reference.title) == (str(candidate), str(reference))
        first = found.summary.first
        assert first is not None and first.candidate is not None and "linear" in first.candidate.label
        assert [row.number for row in found.rows()] == [0, 1]
        assert found.summary.counts.replayed
    assert told
    with graphprobe.compare(candidate=candidate, reference=reference, replay=False) as without:
        assert without.summary.outcome == "different" and not without.summary.counts.replayed
    with graphprobe.compare(candidate=candidate, reference=reference, steps=[0], ranks={0}) as chosen:
        assert chosen.summary.counts.pairs == 2
    with graphprobe.compare(candidate=candidate, reference=reference, steps=[7]) as nothing:
        assert nothing.summary.counts.pairs == 0 and nothing.summary.outcome == "undecided"
    with pytest.raises(graphprobe.NotComparableError, match="compiled graphs"):
        graphprobe.compare(candidate=dumps["graphprobe-graph"], reference=reference)


def test_report(dumps: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dump = dumps["graphprobe-api"]
    page = graphprobe.report(dump)
    assert page == tmp_path / "report.html" and "<title>graphprobe" in page.read_text()
    with pytest.raises(UsageError, match=r"report\(out='report.html'\): it exists already") as caught:
        graphprobe.report(dump)
    assert "force=True" in caught.value.hint
    assert graphprobe.report(dump, force=True, source_roots=[tmp_path]) == page
    page.write_text("mine")
    with pytest.raises(UsageError, match="not replaced"):
        graphprobe.report(dump, force=True)
    assert page.read_text() == "mine"
    assert graphprobe.report(dump, out=tmp_path / "other.html") == tmp_path / "other.html"


def test_open_run(tmp_path: Path) -> None:
    with graphprobe.trace(tmp_path) as folder:
        pass
    for path in (folder, str(folder), tmp_path):
        run = graphprobe.open_run(path)
        assert isinstance(run, graphprobe.Run)
        assert (run.run_dir, run.state) == (folder, "finished")


CASE = """
import sys
sys.path.insert(0, {diagnose!r})
from pathlib import Path
import graphprobe
from graphprobe.diagnose.dossier.writer import write_dossier
from graphprobe.diagnose.reduction.case_folder import finding_of
from reduction.reduction_cases import case_of, mlp
fn, args = mlp(depth=1, at=0)
case = case_of(fn, args, backend="eager")
write_dossier(Path("case"), case, finding_of(case, ""))
told = []
found = graphprobe.reduce("case", check="grep -q relu graph.txt && exit 3 || exit 0", on_progress=told.append)
assert isinstance(found, graphprobe.CaseReduction)
assert (found.after, found.folder) == (1, Path("case-reduced").absolute()), found
assert found.before > 1 and found.signature and told
again = graphprobe.reduce("case", check="grep -q relu graph.txt && exit 3 || exit 0", resume=True)
assert again.reduction.calls == 0 and again.after == 1
"""


@pytest.mark.slow
def test_reduce(run_warm: Callable[..., Finished], tmp_path: Path) -> None:
    done = run_warm("-c", CASE.format(diagnose=str(ROOT / "tests" / "diagnose")), cwd=tmp_path)
    assert done.code == 0, done.err
    assert (tmp_path / "case-reduced" / "repro" / "repro.py").is_file()


def test_reading_imports_no_torch(dumps: dict[str, Path], run_python: Callable[..., Finished], tmp_path: Path) -> None:
    path = dumps["graphprobe-graph"]
    code = "import sys, graphprobe as g; path = sys.argv[1]; list(g.open_dump(path).calls(0, 5)); g.report(path)"
    done = run_python("-c", f"{code}; sys.exit('torch' in sys.modules)", str(path), cwd=tmp_path)
    assert done.code == 0, done.err


def every_error() -> list[type[GraphprobeError]]:
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GraphprobeError)]


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_a_traceback_has_the_hint(kind: type[GraphprobeError]) -> None:
    place = {"where": "$.x", "slug": "dump-config-value"} if kind is errors.DumpConfigError else {}
    error = kind("what happened", hint="what to do", **place)
    trace = "".join(traceback.format_exception(error))
    assert trace.splitlines()[-1] == "hint: what to do"
    assert trace.count("what to do") == 1, "once, also in a class of a class"
    assert errors.last_line(trace).endswith("what happened")
    assert "hint" not in "".join(traceback.format_exception(kind("what happened", **place)))


ACCEPTED: dict[str, Any] = {
    "flag": bool | None,
    "path": str | Path | None,
    "size": int | str | None,
    "names": str | list[str] | tuple[str, ...] | None,
}
"""The annotation of a setting by its type; a choice has what its row allows."""


@pytest.mark.parametrize(
    ("function", "left_out"), [("enable", {"out_dir"}), ("trace", {"out_dir"}), ("wrap", WHOLE_RUN)]
)
def test_keyword_arguments_are_the_table_of_settings(function: str, left_out: set[str]) -> None:
    (keywords,) = typing.get_args(typing.get_type_hints(inspect.unwrap(getattr(graphprobe, function)))["settings"])
    rows = [row for row in TABLE if row.name not in left_out]
    assert len(rows) == len(TABLE) - len(left_out)
    assert typing.get_type_hints(keywords) == {
        row.name: typing.Literal[row.allowed] | None if row.type == "choice" else ACCEPTED[row.type] for row in rows
    }
    assert keywords.__required_keys__ == set()
