"""The report of a diagnosis: what is wrong, on which rung and where, how sure that is, and how to see it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from graphprobe.findings import Diagnosis, Finding, FunctionDiagnosis, bits_in_words
from graphprobe.report.diagnosis import VERDICTS, beside, foremost, sentence, stage_in_words, told
from graphprobe.report.document import (
    Badge,
    Card,
    Cards,
    Code,
    Content,
    DocumentVerdict,
    Facts,
    Folded,
    Grid,
    Jump,
    Listing,
    Section,
    SourcePlace,
    Tone,
    counted,
)
from graphprobe.report.html.page import Report
from graphprobe.report.html.panes import COMMENT, CodeView, Link, Pane, graph_pane, source_pane, text_pane
from graphprobe.report.html.render import html
from graphprobe.report.html.sources import Sources
from graphprobe.store.diagnosis_file import FINDING, Diagnosed, proof_of, read_diagnosed
from graphprobe.store.files import read_file

AROUND = 14
"""Lines of the program shown before and after the accused one."""

COMPUTED = re.compile(r"\btmp\d+ = (?!.*\bload)")
"""A line of a kernel that computes: what is only loaded or stored is not to blame."""

FILES = {
    "repro.py": "shows the fault: exits 1 while it is there",
    "test_repro.py": "the same as a test, which passes once the fault is gone",
    "REPORT.md": "the fault as an issue: `graphprobe issue` prints it",
    "output.txt": "what repro.py printed",
    "exact": "the recorded graph on the recorded bits, with all that it reads",
    "finding.json": "what was found",
    "graph.txt": "the smallest graph that shows it",
    "graph_before.txt": "the graph before the accused pass",
    "generated_code.py": "what the compiler generated",
    "kernel.cpp": "the accused kernel, as it was generated for the program",
    "kernel.py": "the accused kernel, as it was generated for the program",
}

TEMPLATE = "an issue in the form of PyTorch's template: `graphprobe issue` prints it"
"""What `REPORT.md` is where the fault is PyTorch's, and not a backend's."""

RUNGS = (
    ("dynamo", "Dynamo", "the graphs that were recorded from the Python code, run as they are"),
    ("aot", "AOTAutograd", "the graphs without in-place changes, forward and backward"),
    ("passes", "Passes", "the graphs after decomposition and every pass of the compiler, run op by op"),
    ("kernels", "Kernels", "the generated code"),
    ("plain", "Backend", "what the backend makes of these graphs"),
)
"""Name in a diagnosis, name for people, and what runs there; from the first to the last."""

MADE = "the graph that it has made, run op by op"
"""What runs on a rung of what was exported or traced."""

RUNG_OF_STAGE = {"dynamo": "dynamo", "backend": "plain", "aot": "aot"}
RUNG_OF_STAGE |= dict.fromkeys(("decomposition", "pre_grad", "joint", "post_grad"), "passes")
"""The first rung on which a fault of the stage shows; of other stages the kernels."""

STATES: dict[str, tuple[Tone, str]] = {
    "wrong": ("bad", "wrong"),
    "unsure": ("warn", "not told"),
    "right": ("good", "right"),
    "not_run": ("info", "not run"),
}
"""Tone and word of what was measured on a rung."""

_LADDER = """<ol class="ladder">
<li class="info"><span class="rung">Eager</span><span class="state">{{ reference | show }}</span>
<span class="what">the program as it is written, not compiled: what the others are held against</span></li>
{% for name, what, tone, state, why in rungs %}
<li class="{{ tone }}"><span class="rung">{{ name }}</span><span class="state">{{ state | show }}</span>
<span class="what">{{ what }}{% if why %}<br><strong>{{ why }}</strong>{% endif %}</span></li>
{% endfor %}
</ol>
"""

ORDER = ("fault", "undecided", "healthy")

MOST_FUNCTIONS = 20
"""Functions of a script that get sections of their own: those with a fault first."""


def code_section(finding: Finding, folder: Path | None, sources: Sources, suffix: str) -> Section | None:
    """Source, FX graph and kernel of a finding; None where there is none of them."""
    panes: list[Pane] = []
    marks: list[list[int]] = []
    if finding.source:
        places = [sources.short(place) for place in (finding.called_from, finding.source) if place]
        pane, at = source_pane(places, sources, around=AROUND)
        if pane.lines:
            panes.append(pane)
            marks.append(list(at.values()))
    names = {"graph_before.txt": "FX graph before the pass", "graph.txt": "FX graph, the smallest that fails"}
    for name, title in names.items() if folder else ():
        text = read(folder, name)
        if text:
            pane, nodes = graph_pane(title, name, text, sources)
            panes.append(pane)
            lines = text.splitlines()  # the node may have another name in this graph: then all that computes anything
            computing = [index for index in nodes.values() if "torch.ops" in lines[index]]
            marks.append([nodes[finding.node]] if finding.node in nodes else computing)
    for name in ("kernel.cpp", "kernel.py", "generated_code.py") if folder else ():
        text = read(folder, name)
        if text:
            panes.append(text_pane("Kernel" if name.startswith("kernel") else "Generated code", name, text))
            accused = COMPUTED if name.startswith("kernel") else re.compile(re.escape(finding.kernel or "\0"))
            marks.append([index for index, line in enumerate(text.splitlines()) if accused.search(line)])
            break
    if not panes:
        return None
    label = finding.op or finding.kernel or finding.kind
    summary = ", ".join(pane.title.split(",")[0] for pane in panes)
    title = "Source, graph and kernel" + (f" of fault {suffix[1:]}" if suffix else "")
    return Section(f"code{suffix}", title, "code", [CodeView(label, panes, [Link(label, marks)])], summary=summary)


def proof_section(finding: Finding, folder: Path | None, suffix: str) -> Section | None:
    """The files of the dossier, and its report."""
    if folder is None:
        return None
    names = sorted(path.name for path in folder.iterdir() if path.is_file() or path.name in FILES)
    known = [name for name in FILES if name in names]
    meanings = FILES | ({"REPORT.md": TEMPLATE} if finding.backend is None else {})
    files: list[tuple[str, Content]] = [(name, meanings[name]) for name in known]
    if others := [name for name in names if name not in FILES]:
        files.append((", ".join(others), "the values that the repro reads"))
    body: list[Content] = [("The folder ", Code(str(folder)), " holds everything that shows the fault."), Facts(files)]
    if report := read(folder, "REPORT.md"):
        body.append(Folded("REPORT.md, ready to be posted", Listing(report, "REPORT.md")))
    title = "The proof" + (f" of fault {suffix[1:]}" if suffix else "")
    return Section(f"proof{suffix}", title, body=body, summary=f"{len(names)} files")


def read(folder: Path | None, name: str) -> str:
    """A text of the dossier; empty where there is none."""
    try:
        return read_file(folder / name, below=folder).decode("utf-8", "replace") if folder is not None else ""
    except OSError:
        return ""


def recorded_line(folder: Path | None, source: str | None) -> str:
    """The text of the accused line as it was when it was compiled, from the comments of the graph; empty without."""
    for line in read(folder, "graph.txt").splitlines():
        found = COMMENT.match(line)
        if found is not None and found["place"] == source:
            return found["code"] or ""
    return ""


def states(diagnosis: Diagnosis) -> list[tuple[str, Tone, str, str]]:
    """Of each rung that there is: its name, the tone, a word, and why.

    A rung that a finding accuses is wrong. One that is wrong without being accused goes on with what is wrong already.
    """
    measured = {str(rung.name): (str(rung.state), rung.difference) for rung in diagnosis.rungs}
    # The last rung is the compiled program itself, run once more without being watched.
    plain = measured.pop("plain", ("not_run", "")) if "kernels" in measured else ("not_run", "")
    if plain[0] != "not_run" and measured["kernels"][0] in ("right", "not_run"):
        measured["kernels"] = plain
    accused: dict[str, list[str]] = {}
    for finding in (one for one in diagnosis.findings if one.kind != "not_bitwise"):
        accused.setdefault(RUNG_OF_STAGE.get(finding.stage, "kernels"), []).append(stage_in_words(finding))
    found: list[tuple[str, Tone, str, str]] = []
    broken = False
    told = [name for name, _, _ in RUNGS]
    names = told if measured.keys() <= set(told) else list(measured)
    for name in names:
        state, why = measured.get(name, ("", ""))
        if name in accused:
            found.append((name, "bad", "wrong", "; ".join(dict.fromkeys(accused[name]))))
        elif state == "wrong" and broken:
            found.append((name, "warn", "wrong, too", "it is given what is wrong already"))
        elif state:
            tone, word = STATES[state]
            found.append((name, tone, word, why if state in ("wrong", "unsure") else ""))
        broken = any(tone == "bad" for _, tone, _, _ in found)
    return found


def ladder_section(diagnosis: Diagnosis) -> Section:
    """The ladder of one diagnosis, as a list."""
    told = {name: (title, what) for name, title, what in RUNGS}
    told |= {rung.name: (rung.name, MADE) for rung in diagnosis.rungs if rung.name not in told}
    rungs = [(*told[name], tone, Badge(tone, word), why) for name, tone, word, why in states(diagnosis)]
    passed = sum(tone == "good" for _, _, tone, _, _ in rungs)
    first = next((title for title, _, tone, _, _ in rungs if tone == "bad"), None)
    summary = f"first wrong: {first}" if first else f"{passed} of {len(rungs)} rungs right"
    text = html(_LADDER, rungs=rungs, reference=Badge("info", "reference"))
    return Section("ladder", "Where it begins", body=text, summary=summary)


def report_from(path: Path, *, source_roots: Sequence[Path] = ()) -> Report:
    """The report of the JSON of a diagnosis, of a dossier, or of a folder of dossiers: see `page_of`."""
    found = read_diagnosed(path)
    written_ns = (path / FINDING if (path / FINDING).is_file() else path).stat().st_mtime_ns
    sources = Sources(Path.cwd(), given=source_roots, recorded=path.resolve().parent, since_ns=written_ns)
    shown = sorted(found.diagnoses, key=lambda d: ORDER.index(d.verdict))
    several = len(shown) > 1
    name, verdict = found.target or str(path), _verdict(shown, found, sources)
    sections = [_functions(shown, sources)] if several else []
    for number, diagnosis in enumerate(shown[:MOST_FUNCTIONS] if several else shown):
        if number == 0 or diagnosis.verdict != "healthy":
            sections += _sections(diagnosis, found, sources, f"f{number}-" if several else "")
    return Report(f"graphprobe: {verdict.word}: {name}", name, verdict, sections, sources)


def _verdict(shown: list[FunctionDiagnosis], found: Diagnosed, sources: Sources) -> DocumentVerdict:
    word, tone, meaning = VERDICTS[shown[0].verdict]
    findings = [finding for diagnosis in shown for finding in diagnosis.findings]
    rows: list[tuple[str, Content]] = []
    body: list[Content] = []
    if findings and word == "FAULT":
        first = foremost(findings)
        text = sentence(first)
        *body, facts = _told(first, found, sources)
        rows += facts.rows if isinstance(facts, Facts) else []
        if len(findings) > 1:
            rows.append(("more", Jump("functions" if len(shown) > 1 else "findings", f"{len(findings)} faults in all")))
    else:
        meaning = meaning or "a fault was found, and the file does not say which"
        text = f"{meaning[:1].upper()}{meaning[1:]}."
        notes = [note for diagnosis in shown for note in diagnosis.notes]
        rows += [("why", note) for note in notes[:1] if word == "UNDECIDED"]
        rows += _measured(shown) if not found.partial else []
    if found.ended:
        rows.append(("the script", found.ended))
    return DocumentVerdict(tone, word, text, [*body, Facts(rows)])


def _sections(diagnosis: FunctionDiagnosis, found: Diagnosed, sources: Sources, prefix: str) -> list[Section]:
    findings = diagnosis.findings
    made: list[Section | None] = []
    if len(findings) > 1 or (prefix and findings):
        cards = [Card(f"{n}. {sentence(one)}", _told(one, found, sources)) for n, one in enumerate(findings, 1)]
        made.append(Section("findings", "All findings", body=Cards(cards), summary=counted(len(cards), "fault")))
    if diagnosis.rungs and not found.partial:
        made.append(ladder_section(diagnosis))
    many = len(findings) > 1
    proofs = [(one, proof_of(one, found.path), f"-{n}" if many else "") for n, one in enumerate(findings, 1)]
    for finding, folder, suffix in proofs:
        made.append(code_section(finding, folder, sources, suffix))
    if not found.partial and (rest := beside(diagnosis)):
        summary = f"{len(diagnosis.ruled_out)} checked, {counted(len(diagnosis.notes), 'note')}"
        made.append(Section("checked", "What was ruled out", body=rest, summary=summary))
    made += [proof_section(finding, folder, suffix) for finding, folder, suffix in proofs]
    sections = [section for section in made if section is not None]
    if not prefix:
        return sections
    return [replace(section, id=f"{prefix}{section.id}", group=diagnosis.function) for section in sections]


def _functions(shown: list[FunctionDiagnosis], sources: Sources) -> Section:
    rows: list[list[Content]] = []
    for diagnosis in shown:
        _, tone, meaning = VERDICTS[diagnosis.verdict]
        what = " ".join(map(sentence, diagnosis.findings)) or meaning
        name, bracket, place = diagnosis.function.partition(" (")
        place, _, call = place.partition(")")
        link = sources.place(place) if bracket else ""
        badge = Badge(tone, diagnosis.verdict)
        rows.append([(Code(f"{name}{call}"), " ", link), badge, what, f"{diagnosis.seconds:.1f}"])
    counts = [f"{n} {word}" for word in ORDER if (n := sum(d.verdict == word for d in shown))]
    left = sum(d.verdict != "healthy" for d in shown) - MOST_FUNCTIONS
    note = f"The parts below are of the first {MOST_FUNCTIONS}; {left} more are in the JSON." if left > 0 else ""
    grid = Grid(("Function", "Verdict", "What", "Seconds"), rows, numbers=(3,), left=note)
    return Section("functions", "Functions", body=grid, summary=", ".join(counts))


def _told(finding: Finding, found: Diagnosed, sources: Sources) -> list[Content]:
    folder = proof_of(finding, found.path)

    def place(source: str) -> SourcePlace:
        at = sources.place(source)
        # The file may have changed since.
        return replace(at, line=recorded_line(folder, source) or at.line)

    return told(finding, place, str(folder) if folder is not None else None)


def _measured(shown: list[FunctionDiagnosis]) -> list[tuple[str, Content]]:
    largest = max((d.largest_z for d in shown), key=lambda one: one.z)
    rows: list[tuple[str, Content]] = []
    if largest.node:
        error = f"{largest.z:.3g} times what rounding explains, at "
        rows.append(("largest error", (error, Code(largest.node), "; a fault is far above 4")))
    rows += [("last bits", bits_in_words(d.differences)) for d in shown[:1] if d.differences]
    graphs = counted(sum(d.compiles for d in shown), "graph")
    rows.append(("looked at", f"{graphs} compiled to kernels, in {sum(d.seconds for d in shown):.0f} s"))
    return rows
