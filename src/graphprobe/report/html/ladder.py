"""The ladder: on which way of running the program the fault appears."""

from __future__ import annotations

from graphprobe.findings import Diagnosis
from graphprobe.report.diagnosis import STAGES
from graphprobe.report.document import Badge, Section, Tone
from graphprobe.report.html.render import html

RUNGS = (
    ("dynamo", "Dynamo", "the graphs that were recorded from the Python code, run as they are"),
    ("aot", "AOTAutograd", "the graphs without in-place changes, forward and backward"),
    ("passes", "Passes", "the graphs after decomposition and every pass of the compiler, run op by op"),
    ("kernels", "Kernels", "the generated code"),
)
"""Name in a diagnosis, name for people, and what runs there; from the first to the last."""

RUNG_OF_STAGE = {
    "dynamo": "dynamo",
    "aot": "aot",
    "decomposition": "passes",
    "pre_grad": "passes",
    "joint": "passes",
    "post_grad": "passes",
    "lowering": "kernels",
    "codegen": "kernels",
    "runtime": "kernels",
}
"""The first rung on which a fault of the stage shows."""

_LADDER = """<ol class="ladder">
<li class="info"><span class="rung">Eager</span><span class="state">{{ reference | show }}</span>
<span class="what">the program as it is written, not compiled: what the others are held against</span></li>
{% for name, what, tone, state, why in rungs %}
<li class="{{ tone }}"><span class="rung">{{ name }}</span><span class="state">{{ state | show }}</span>
<span class="what">{{ what }}{% if why %}<br><strong>{{ why }}</strong>{% endif %}</span></li>
{% endfor %}
</ol>
"""


def states(diagnosis: Diagnosis) -> list[tuple[str, Tone, str, str]]:
    """Of each rung that there is: its name, the tone, a word, and why.

    A rung that a finding accuses is wrong. One that is wrong without being accused goes on with what is wrong already.
    """
    measured = {str(rung.name): (str(rung.state), rung.difference) for rung in diagnosis.rungs}
    # The last rung is the compiled program itself, run once more without being watched.
    if measured.get("kernels", ("right",))[0] in ("right", "not_run") and "plain" in measured:
        state, why = measured["plain"]
        if state != "not_run":
            measured["kernels"] = (state, why)
    accused: dict[str, list[str]] = {}
    for finding in diagnosis.findings:
        accused.setdefault(RUNG_OF_STAGE.get(finding.stage, "kernels"), []).append(finding.stage)
    found: list[tuple[str, Tone, str, str]] = []
    broken = False
    for name, _, _ in RUNGS:
        state, why = measured.get(name, ("not_run", ""))
        if name in accused:
            stages = dict.fromkeys(accused[name])
            found.append((name, "bad", "wrong", "; ".join(STAGES.get(stage, stage) for stage in stages)))
            broken = True
        elif state == "wrong" and broken:
            found.append((name, "warn", "wrong, too", "it is given what is wrong already"))
        elif state == "wrong":
            found.append((name, "bad", "wrong", why))
            broken = True
        elif state == "unsure":
            found.append((name, "warn", "not told", why))
        elif state == "right":
            found.append((name, "good", "right", ""))
        elif name in measured:
            found.append((name, "info", "not run", ""))
    return found


def ladder_section(diagnosis: Diagnosis) -> Section:
    """The ladder of one diagnosis, as a list."""
    told = {name: (title, what) for name, title, what in RUNGS}
    rungs = []
    passed = 0
    for name, tone, word, why in states(diagnosis):
        rungs.append((*told[name], tone, Badge(tone, word), why))
        passed += tone == "good"
    first = next((title for title, _, tone, _, _ in rungs if tone == "bad"), None)
    summary = f"first wrong: {first}" if first else f"{passed} of {len(rungs)} rungs right"
    text = html(_LADDER, rungs=rungs, reference=Badge("info", "reference"))
    return Section("ladder", "Where it begins", body=text, summary=summary)
