"""Writes `REPORT.md` in the form of PyTorch's template for torch.compile bugs, without folders of this machine."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Mapping, Sequence

from graphprobe.findings import (
    Finding,
    Kind,
    KnownIssue,
    Rung,
    Workaround,
    expected_in_words,
    place_in_words,
    size_in_words,
)
from graphprobe.report.diagnosis import CRASHES, FAULTS_IN_WORDS, SENTENCES, as_sentence, details, reason_of, where_of

TITLES = {
    "crash_compile": "compile error",
    "crash_runtime": "crash at run time",
    "segfault": "process killed by a signal",
}
"""Kinds whose name is no title."""

EXPECTED: dict[Kind, tuple[str, str]] = {
    "crash_compile": ("it compiles", "the compiler fails, see the error log"),
    "crash_runtime": ("it runs, as it does uncompiled", "it fails, see the error log"),
    "segfault": ("it runs, as it does uncompiled", "the process is killed"),
    "hang": ("it ends, as it does uncompiled", "it does not end"),
    "unsupported": ("it compiles", "torch.compile refuses it, see the error log"),
    "missing_exception": ("the exception that it raises uncompiled", "no exception"),
    "extra_exception": ("no exception", "an exception, see the error log"),
}
"""What is expected and what happens, of the kinds that have no values to tell."""

STAGES = {
    "dynamo": "Dynamo",
    "trace": "tracing (torch.export, make_fx)",
    "pass": "a pass of the program",
    "aot": "AOTAutograd",
    "decomposition": "a decomposition",
    "pre_grad": "Inductor's pre-grad passes",
    "joint": "Inductor's joint-graph passes",
    "post_grad": "Inductor's post-grad passes",
    "lowering": "Inductor's lowering",
    "codegen": "Inductor's code generation",
    "runtime": "the compiled code, when it runs",
}
BACKENDS = ("eager", "aot_eager", "aot_eager_decomp_partition", "inductor")
"""Rows of the table, each with more of the compiler than the one before."""

RUNG_BACKENDS = {"dynamo": "eager", "aot": "aot_eager", "passes": "aot_eager_decomp_partition"}
BACKENDS_HEAD = "| backend | result |"
WORKAROUND_HEAD = "### Workaround"
STATES = {"right": "right", "wrong": "**wrong**", "unsure": "not sure", "not_run": "not run"}

CODES = "exits 1 while the fault is there, 0 when it is gone, and 125 when it cannot tell"

DRAWS = "torch.manual_seed("
"""In a script whose inputs are not those of the program."""

CODE_LINES, GRAPH_LINES = 200, 120
"""What is longer is attached, or cut, and whole in a file of its own."""

LOG_LINES = 40

FIRST = "(most recent call first)"
"""In what `faulthandler` prints above the frames of each thread; the main thread comes last."""

PATH = re.compile(r"(?:file://|(?<![\w.:/<])|(?<=-[IL]))(?:/[\w.+@~%-]+){2,}/?")
INSTALLED = re.compile(r".*/(?:(?:site|dist)-packages|lib/python3\.\d+)/(?=.)")
HOME = re.compile(r"/(?:home|Users)/[^/]+/?")
CACHE = re.compile(r"\btorchinductor_[\w.-]+")

ADVICE = re.compile(
    r"\s*(?:Set TORCHDYNAMO_VERBOSE=1|Set TORCH_LOGS=|For even more developer context|You can suppress this exception"
    r"|import torch\._dynamo$|torch\._dynamo\.config\.suppress_errors)"
)
"""What torch says under every error."""

OWN_FRAME = re.compile(r'^  File "[^"\n]*/graphprobe/[^"\n]+", line \d+, in .*\n(?:    .*\n)*', re.MULTILINE)
CARETS = re.compile(r"^ +[~^]+\n", re.MULTILINE)
"""Parts of a traceback that say nothing of the fault."""

RAISED = re.compile(r"(?:[A-Za-z_][\w.]*\.)?\w*(?:Error|Exception|Failed|Unsupported)\b")
ERROR = re.compile(r":\d+(?::\d+)?: (?:fatal )?error: ")
AROUND = re.compile(r": (?:In (?:\w+ )?(?:function|constructor|lambda)|At global scope)")
OTHER = re.compile(r": (?:warning|note): |^In file included from |In instantiation of|required from|^\s+from ")


def title_of(finding: Finding) -> str:
    """One line that names the fault, for an issue and for the head of the repro."""
    kind = TITLES.get(finding.kind, finding.kind.replace("_", " "))
    culprit = f" from {finding.op}" if finding.op else ""
    kind, culprit = (finding.relation, "") if finding.relation else (kind, culprit)
    names = [name.partition(" (")[0] for name in (finding.backend or finding.stage, finding.pass_) if name]
    stage = "" if finding.stage == "unknown" else f" ({', '.join(names)})"
    backward = " in the backward" if finding.direction == "backward" and not finding.relation else ""
    entry = {"pass": "graph pass", "trace": "torch.export"}.get(finding.stage, "torch.compile")
    return f"{entry}: {kind}{culprit}{backward}{stage}"


def backends_of(rungs: Sequence[Rung], *, backend: str = "inductor") -> dict[str, str]:
    """`right`, `wrong`, `unsure` or `not_run` of each backend, as the rungs of a diagnosis say; empty without rungs.

    Args:
        backend: name of the program's own backend.
    """
    states = {str(rung.name): str(rung.state) for rung in rungs}
    found = {name: states[rung] for rung, name in RUNG_BACKENDS.items() if rung in states}
    if "passes" in states:  # they do more than this backend: if they are wrong, nobody knows what it returns
        found["aot_eager_decomp_partition"] = "right" if states["passes"] == "right" else "not_run"
    top = states.get("plain", "not_run")
    found[backend] = states.get("kernels", "not_run") if top == "not_run" else top
    return found if "dynamo" in states else {}


def report_text(
    finding: Finding,
    *,
    code: str | None = None,
    output: str = "",
    versions: Mapping[str, str],
    files: Mapping[str, str],
    log: str = "",
    graph: str = "",
    problems: Sequence[str] = (),
    neighbour: str | None = None,
    settings: Sequence[str] = (),
) -> str:
    """The report as Markdown. It names no folder of this machine.

    Args:
        code: the script that shows the fault; None, or a long one: it is to be attached; empty: there is none.
        output: what the script prints.
        versions: name and version of everything that may matter, see `environment`.
        files: name and meaning of the files beside the report.
        log: what was raised, with the compiler's own words.
        graph: the graph as text.
        problems: why the script cannot be run elsewhere, one line each.
        neighbour: the nearest variant that passes, as a sentence.
        settings: those that are not torch's defaults, as statements of Python.
    """
    shown = code if code is not None and code.count("\n") <= CODE_LINES else None
    expected, actual, rest = _expected(finding)
    stood = output if finding.kind == "hang" and FIRST in output else ""
    errors = trimmed(log or stood or (finding.reason if finding.kind in CRASHES else ""))
    printed = trimmed(output)
    lines = [f"\n{name}:\n{value}" if "\n" in value else f"{name}: {value}" for name, value in versions.items()]
    parts = [
        f"# {title_of(finding)}",
        "### 🐛 Describe the bug",
        scrubbed(" ".join(filter(None, (_what(finding), as_sentence(rest), neighbour)))),
        _code(shown),
        _listed("It cannot be run elsewhere for now:", [scrubbed(text) for text in problems]),
        "On the program's own values (the script draws others):"
        if finding.worst is not None and DRAWS in (shown or "")
        else "",
        scrubbed(f"- *Expected*: {expected}\n- *Actual*: {actual}"),
        f"Output of the script:\n\n{_fenced(printed)}" if printed and printed not in errors and not stood else "",
        _listed("Settings other than the defaults:", [f"`{scrubbed(text)}`" for text in settings]),
        _folded("Where it comes from, and how it was measured", scrubbed(_facts(finding))),
        _folded("Graph", _fenced(_cut(scrubbed(graph)), "python")) if graph else "",
        _files(files, inline=shown is not None),
        "### Error logs",
        _fenced(errors) if errors else "No error is raised.",
        "### Versions",
        _fenced("\n".join(lines)) if versions else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def with_backends(report: str, backends: Mapping[str, str]) -> str:
    """The report with a table of what each backend gives, before what is folded; as it is where it has one."""
    return report if not backends or BACKENDS_HEAD in report else _with(report, _backends(backends))


def with_workarounds(report: str, workarounds: Sequence[Workaround]) -> str:
    """The report with what to do until the fault is fixed, before what is folded; as it is where it has that."""
    if not workarounds or WORKAROUND_HEAD in report:
        return report
    price = as_sentence(workarounds[0].price)
    told = [
        f"{WORKAROUND_HEAD}\n\nThe whole program is right with this change, {where_of(workarounds[0])}. {price}".strip()
    ]
    told += [_fenced(scrubbed_code(one.code), "python") for one in workarounds]
    return _with(report, "\n\n".join(told))


def with_known(report: str, known: KnownIssue | None) -> str:
    """The report with the issue that the fault looks like, before what is folded; as it is where it has that."""
    if known is None or known.in_words in report:
        return report
    return _with(report, f"It {known.in_words}.")


def _with(report: str, text: str) -> str:
    blocks = report.split("\n\n")
    at = next((i for i, block in enumerate(blocks) if block.startswith(("<details>", "### Error logs"))), len(blocks))
    return "\n\n".join([*blocks[:at], text, *blocks[at:]])


def _what(finding: Finding) -> str:
    """What happens, where, and in which part of the compiler."""
    place = f" (`{finding.line}`)" if finding.line else ""
    subject = f"`{finding.op}`{place}" if finding.op else f"the program{place}"
    kind = FAULTS_IN_WORDS[finding.kind]
    backward = finding.direction == "backward" and "backward" not in kind
    text = f"With `torch.compile`, {subject} {kind}{', in the backward' if backward else ''}."
    if finding.relation:
        text = f"With `torch.compile`, {finding.relation}{place}."
    if finding.stage != "unknown":
        by = f", by the pass `{finding.pass_}`" if finding.pass_ and finding.backend is None else ""
        verb = "begins to differ" if finding.kind == "not_bitwise" else "goes wrong"
        text += f" It {verb} in {STAGES.get(finding.stage) or finding.backend_in_words}{by}."
    if finding.flaky_rate < 1:
        text += f" It is flaky: it failed in {finding.flaky_rate:.0%} of the repeats."
    return text


def _expected(finding: Finding) -> tuple[str, str, str]:
    """What was expected, what came, and what else the reason says."""
    _, reason = reason_of(finding)
    first, *others = SENTENCES.split(reason) if finding.kind not in CRASHES else [""]
    rest = " ".join(others)
    if finding.worst is not None:
        expected, actual = expected_in_words(finding.worst)
        size = size_in_words(finding.worst)
        place = place_in_words(finding.worst)
        return f"{expected} {place}", f"{actual}{f'; {size}' if size else ''}", " ".join(filter(None, (first, rest)))
    got, known, expected = first.rstrip(".").rpartition(", uncompiled ")
    if known and ";" not in got:
        return expected, got, rest
    want, have = EXPECTED.get(finding.kind, ("the same as uncompiled", FAULTS_IN_WORDS[finding.kind]))
    return want, have, " ".join(filter(None, (first, rest)))


def _code(code: str | None) -> str:
    if code == "":
        return ""
    if code is None:
        return f"`repro.py` is attached. `python repro.py` {CODES}."
    return f"{_fenced(scrubbed_code(code).rstrip(), 'python')}\n\n`python repro.py` {CODES}."


def _backends(backends: Mapping[str, str]) -> str:
    names = [*(name for name in BACKENDS if name in backends), *(name for name in backends if name not in BACKENDS)]
    rows = [f"| `{name}` | {STATES.get(backends[name], backends[name])} |" for name in names]
    return "\n".join([BACKENDS_HEAD, "|---|---|", *rows])


def _facts(finding: Finding) -> str:
    where = {
        "stage": finding.stage_name,
        "pass": finding.pass_,
        "direction": finding.direction,
        "op": finding.op,
        "other suspects": ", ".join(finding.also),
        "node": finding.node,
        "kernel": finding.kernel,
        "called from": finding.called_from,
        "source": finding.source,
        "module": finding.within or finding.module,
        "measured": "; ".join(details(finding)),
    }
    cells = {key: " ".join(str(value).replace("|", "\\|").split()) for key, value in where.items() if value}
    rows = [f"| {key} | {cell} |" for key, cell in cells.items()]
    return "\n".join(["| | |", "|---|---|", *rows])


def _files(files: Mapping[str, str], *, inline: bool) -> str:
    left = {name: meaning for name, meaning in files.items() if not (inline and name == "repro.py")}
    if not left:
        return ""
    return _folded("Files that can be attached", "\n".join(f"- `{name}`: {what}" for name, what in left.items()))


def _listed(head: str, lines: Sequence[str]) -> str:
    return f"{head}\n\n" + "\n".join(f"- {line}" for line in lines) if lines else ""


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"


def _cut(text: str) -> str:
    lines = text.rstrip().splitlines()
    if len(lines) <= GRAPH_LINES:
        return "\n".join(lines)
    return "\n".join([*lines[:GRAPH_LINES], f"# … {len(lines) - GRAPH_LINES} more lines in graph.txt"])


def _fenced(text: str, language: str = "") -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"


def scrubbed(text: str) -> str:
    """A text in which a path of this machine is its last part, or what lies in an installed package: `torch/…`."""
    return CACHE.sub("torchinductor", PATH.sub(lambda match: _short(match.group()), text))


def scrubbed_code(code: str) -> str:
    """The same of a script: only comments and strings change, so that it still runs."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (tokenize.TokenError, SyntaxError):
        return scrubbed(code)
    starts = [0]
    for line in code.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for token in reversed(tokens):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            begin, end = (starts[row - 1] + column for row, column in (token.start, token.end))
            code = code[:begin] + scrubbed(code[begin:end]) + code[end:]
    return code


def trimmed(log: str) -> str:
    """The part of a log that a person reads: of a C++ compiler its errors, else the last lines; paths are scrubbed."""
    log = OWN_FRAME.sub("", CARETS.sub("", log))
    if FIRST in log:
        head, _, others = log.partition("Thread ")
        log = f"{head}Thread {others.rpartition('Thread ')[2]}"
    lines = [line.rstrip() for line in log.strip().splitlines() if not ADVICE.match(line)]
    found = _compiler_errors(lines)
    if found:
        head = next((line for line in lines if RAISED.match(line)), "")
        lines = [*([head, ""] if head else []), *found]
        if len(lines) > LOG_LINES:
            lines = [*lines[:LOG_LINES], f"… {len(lines) - LOG_LINES} more lines"]
    elif len(lines) > LOG_LINES and FIRST in log:
        lines = [*lines[:LOG_LINES], f"… {len(lines) - LOG_LINES} more lines"]
    elif len(lines) > LOG_LINES:
        lines = [f"… {len(lines) - LOG_LINES} lines before", *lines[-LOG_LINES:]]
    return re.sub(r"\n{3,}", "\n\n", scrubbed("\n".join(lines))).strip("\n")


def _compiler_errors(lines: list[str]) -> list[str]:
    """The errors among what a C++ compiler says, each with its function and the lines that it quotes."""
    kept: list[str] = []
    inside = False
    for i, line in enumerate(lines):
        if ERROR.search(line):
            if i and AROUND.search(lines[i - 1]):
                kept.append(lines[i - 1])
            inside = True
        elif OTHER.search(line) or AROUND.search(line) or not line.strip():
            inside = False
        if inside:
            kept.append(line)
    return kept


def _short(path: str) -> str:
    path = path.removeprefix("file://")
    if HOME.fullmatch(path):
        return "~"
    installed = INSTALLED.sub("", path)
    return installed if installed != path else path.rstrip("/").rpartition("/")[2]
