"""`REPORT.md`: what is wrong, as an issue that can be posted as it is."""

from __future__ import annotations

from collections.abc import Mapping

from graphprobe.diagnose.case import Case
from graphprobe.findings import Finding
from graphprobe.probe.formats.fx_text import graph_text

WRONG = {
    "wrong_value": "gives values that are further from the uncompiled ones than rounding explains",
    "wrong_dtype": "gives another dtype than uncompiled",
    "wrong_shape": "gives another shape than uncompiled",
    "wrong_stride": "gives other strides than uncompiled",
    "lost_mutation": "does not change an input that it changes uncompiled, or changes it otherwise",
    "aliasing": "shares memory between other tensors than uncompiled",
    "nonfinite": "gives NaN or infinity in other places than uncompiled",
    "wrong_gradient": "gives gradients that are further from the uncompiled ones than rounding explains",
    "missing_exception": "raises nothing, where it raises an exception uncompiled",
    "extra_exception": "raises an exception, where it raises none uncompiled",
    "crash_compile": "cannot be compiled: the compiler raises an exception",
    "crash_runtime": "crashes when it runs",
    "segfault": "is killed by a signal",
    "hang": "does not end",
    "side_effect": "loses or changes a side effect",
    "unsupported": "is refused by torch.compile",
}
GRAPH_LINES = 120
"""A longer graph is cut in the report and complete in `graph.txt`."""


def title_of(finding: Finding) -> str:
    """One line that names the fault, for an issue and for the head of the repro."""
    culprit = f" from {finding.op}" if finding.op else ""
    stage = "" if finding.stage == "unknown" else f" ({finding.stage}{f', {finding.pass_}' if finding.pass_ else ''})"
    backward = " in the backward" if finding.direction == "backward" else ""
    return f"torch.compile: {finding.kind.replace('_', ' ')}{culprit}{backward}{stage}"


def report_text(
    case: Case,
    finding: Finding,
    *,
    versions: Mapping[str, str],
    files: Mapping[str, str],
    neighbour: str | None = None,
    problems: tuple[str, ...] = (),
) -> str:
    """The report as Markdown.

    Args:
        versions: name and version of everything that may matter.
        files: name and meaning of the files beside the report.
        neighbour: the nearest variant that passes, as a sentence.
        problems: why the repro cannot be run elsewhere.
    """
    parts = [f"# {title_of(finding)}", _sentence(case, finding)]
    if finding.reason:
        parts.append(finding.reason)
    if neighbour:
        parts.append(f"The nearest variant that passes: {neighbour}")
    parts += ["## How to see it", _how_to_run(problems)]
    parts += ["## Minimal graph", _fenced(_cut(graph_text(case.graph)), "python"), _call_text(case)]
    parts += ["## Where it comes from", _facts(finding)]
    parts += ["## Versions", _table(versions)] if versions else []
    parts += ["## Files", "\n".join(f"- `{name}`: {meaning}" for name, meaning in files.items())]
    return "\n\n".join(parts) + "\n"


def program_report(finding: Finding, *, versions: Mapping[str, str]) -> str:
    """The report of a finding whose repro is the program itself, as Markdown."""
    op = f" at `{finding.op}`" if finding.op else ""
    parts = [f"# {title_of(finding)}", f"Compiled, the program in `repro.py`{op} {WRONG[finding.kind]}."]
    parts += [finding.reason] if finding.reason else []
    parts += ["No smaller piece of it shows the fault by itself."]
    parts += ["## How to see it", _fenced("python repro.py", "console")]
    parts += ["It exits 1 while the fault is there, 0 when it is gone, and 125 when it cannot tell."]
    parts += ["## Where it comes from", _facts(finding)]
    parts += ["## Versions", _table(versions)] if versions else []
    return "\n\n".join(parts) + "\n"


def _sentence(case: Case, finding: Finding) -> str:
    op = f", at `{finding.op}`," if finding.op else ""
    dynamic = f", dynamic={case.dynamic}" if case.dynamic is not None else ""
    backend = f'"{case.backend}"' if case.own_backend is None else case.own_backend.name
    how = f"`torch.compile(backend={backend}{dynamic})`"
    what = f"Compiled with {how}, the graph below{op} {WRONG[finding.kind]}."
    if finding.flaky_rate >= 1:
        return what
    return f"{what} It is flaky: it failed in {finding.flaky_rate:.0%} of the repeats."


def _how_to_run(problems: tuple[str, ...]) -> str:
    text = (
        _fenced("python repro.py", "console")
        + "\n\nIt needs torch and the files beside it. It exits 1 while the fault is there, 0 when it is gone, and 125 "
        "when it cannot tell. `pytest test_repro.py` passes once the fault is gone."
    )
    if not problems:
        return text
    return f"{text}\n\nIt exits 125 for now, because not all of the case could be saved:\n\n" + "\n".join(
        f"- {problem}" for problem in problems
    )


def _call_text(case: Case) -> str:
    lines = [f"It is called {len(case.calls)} time(s){', with a backward' if case.grad else ', under no_grad'}."]
    for i, call in enumerate(case.calls):
        lines.append(f"- call {i}: {', '.join(_value(record) for record in call.doc['values']) or 'no arguments'}")
    configs = (("inductor", case.inductor_config), ("functorch", case.functorch_config), ("dynamo", case.dynamo_config))
    settings = [
        f"- `torch._{name}.config.{key} = {value!r}`" for name, config in configs for key, value in config.items()
    ]
    if settings:
        lines += ["", "Settings other than the defaults:", "", *settings]
    return "\n".join([lines[0], "", *lines[1:]])


def _value(record: Mapping[str, object]) -> str:
    if record["kind"] == "tensor":
        grad = ", requires grad" if record["requires_grad"] else ""
        return f"`{record['dtype']}{record['shape']}` (strides {record['stride']}, {record['device']}{grad})"
    return f"`{record.get('value', record['kind'])}`"


def _facts(finding: Finding) -> str:
    where = {
        "stage": finding.stage,
        "pass": finding.pass_,
        "direction": finding.direction,
        "op": finding.op,
        "other suspects": ", ".join(finding.also),
        "node": finding.node,
        "kernel": finding.kernel,
        "source": finding.source,
        "module": finding.module,
    }
    if finding.local_z:
        where["error of the op"] = f"{finding.local_z:.4g} times its legitimate noise"
    if finding.accumulated_z:
        where["error of the output"] = f"{finding.accumulated_z:.4g} times its legitimate noise"
    return _table({key: value for key, value in where.items() if value})


def _table(rows: Mapping[str, str]) -> str:
    cells = [f"| {key} | {_cell(value)} |" for key, value in rows.items()]
    return "\n".join(["| | |", "|---|---|", *cells])


def _cell(text: str) -> str:
    return " ".join(str(text).replace("|", "\\|").split())


def _cut(text: str) -> str:
    lines = text.rstrip().splitlines()
    if len(lines) <= GRAPH_LINES:
        return "\n".join(lines)
    return "\n".join([*lines[:GRAPH_LINES], f"# … {len(lines) - GRAPH_LINES} more lines in graph.txt"])


def _fenced(text: str, language: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"
