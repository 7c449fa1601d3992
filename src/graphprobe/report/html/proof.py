"""What a dossier shows of one finding: source, graph and kernel side by side, the graph around, the files."""

from __future__ import annotations

from pathlib import Path

from graphprobe.findings import Finding
from graphprobe.report.document import Code, Content, Facts, Folded, Listing, Section
from graphprobe.report.html.panes import COMMENT, CodeView, Link, Pane, graph_pane, source_pane, text_pane
from graphprobe.report.html.sources import Sources
from graphprobe.store.files import read_file

AROUND = 14
"""Lines of the program shown before and after the accused one."""

FILES = {
    "repro.py": "shows the fault: exits 1 while it is there",
    "test_repro.py": "the same as a test, which passes once the fault is gone",
    "REPORT.md": "an issue in the form of PyTorch's template: `graphprobe issue` prints it",
    "output.txt": "what repro.py printed",
    "exact": "the recorded graph on the recorded bits, with all that it reads",
    "finding.json": "what was found",
    "graph.txt": "the smallest graph that shows it",
    "window.json": "the graph around the accused node, with the error of each",
    "graph_before.txt": "the graph before the accused pass",
    "generated_code.py": "what the compiler generated",
    "kernel.cpp": "the accused kernel, as it was generated for the program",
    "kernel.py": "the accused kernel, as it was generated for the program",
}


def code_section(finding: Finding, folder: Path | None, sources: Sources, suffix: str) -> Section | None:
    """Source, FX graph and kernel of a finding; None where there is none of them."""
    panes: list[Pane] = []
    marks: list[list[int]] = []
    if finding.source:
        place = sources.short(finding.source)
        pane, at = source_pane([place], sources, around=AROUND)
        if pane.lines:
            panes.append(pane)
            marks.append(list(at.values()))
    names = {"graph_before.txt": "FX graph before the pass", "graph.txt": "FX graph, the smallest that fails"}
    for name, title in names.items() if folder else ():
        text = read(folder, name)
        if text:
            pane, nodes = graph_pane(title, name, text, sources)
            panes.append(pane)
            marks.append([nodes[finding.node]] if finding.node in nodes else _computing(nodes, text))
    for name in ("kernel.cpp", "kernel.py", "generated_code.py") if folder else ():
        text = read(folder, name)
        if text:
            panes.append(text_pane("Kernel" if name.startswith("kernel") else "Generated code", name, text))
            marks.append([])
            break
    if not panes:
        return None
    label = finding.op or finding.kernel or finding.kind
    view = CodeView(label, panes, [Link(label, marks)])
    summary = ", ".join(pane.title.split(",")[0] for pane in panes)
    title = "Source, graph and kernel" + (f" of fault {suffix[1:]}" if suffix else "")
    return Section(f"code{suffix}", title, view="code", data=[view], summary=summary)


def proof_section(finding: Finding, folder: Path | None, suffix: str) -> Section | None:
    """The files of the dossier, and its report."""
    if folder is None:
        return None
    names = sorted(path.name for path in folder.iterdir() if path.is_file() or path.name in FILES)
    known = [name for name in FILES if name in names]
    files: list[tuple[str, Content]] = [(name, FILES[name]) for name in known]
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


def _computing(nodes: dict[str, int], text: str) -> list[int]:
    """Where the finding's node has another name in this graph: the lines that compute anything."""
    lines = text.splitlines()
    return [index for index in nodes.values() if "torch.ops" in lines[index]]
