"""Spans to tables, two profiles to a diff, a profile to a Chrome trace: all without torch."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from graphprobe.analysis.timing import (
    CacheEvent,
    Compile,
    Profile,
    Span,
    compare_profiles,
    read_profile,
    self_times,
    summary_of,
    write_profile,
)
from graphprobe.errors import UsageError
from graphprobe.export.chrome_trace import export_profile
from graphprobe.report import diff_lines, profile_lines

MS = 1_000_000


def span(name: str, begin: int, end: int, parent: int = -1, **more: Any) -> Span:
    """Times in ms; half of each is processor time."""
    return Span(name, begin * MS, end * MS, (end - begin) * MS // 2, parent=parent, **more)


def profile_of(spans: list[Span], **more: Any) -> Profile:
    given = {"graphprobe": "0", "torch": "2.13", "python": "3.11", "began_unix_ns": 0, "wall_ns": 2000 * MS}
    given |= {"cpu_ns": 0, "spans": spans, "compiles": [], "caches": [], "threads": ["main", "pool"]}
    return Profile(**(given | more))


def compiled() -> list[Span]:
    return [
        span("torch._inductor", 0, 50, kind="import"),
        span("dynamo", 100, 1100, compile_id="0/0"),
        span("compile_attempt_0", 110, 1000, 1, compile_id="0/0"),
        span("bytecode_tracing", 110, 300, 2, compile_id="0/0"),
        span("some.module", 120, 170, 3, compile_id="0/0", kind="import"),
        span("backend_compile", 300, 990, 2, compile_id="0/0"),
        span("pass.post_grad_passes.slow", 310, 710, 5, compile_id="0/0", kind="pass"),
        span("pass.post_grad_passes.quick", 710, 720, 5, compile_id="0/0", kind="pass"),
        span("pass.post_grad_passes.quick", 720, 730, 5, compile_id="0/0", kind="pass"),
        span("compile_file", 730, 980, 5, compile_id="0/0"),
        span("cpp_build", 400, 900, thread=1, kind="build", detail="a.so"),
        span("compile_file", 410, 890, 10, thread=1),
        span("entire_backward_compile", 1200, 1300, compile_id="0/0"),
        span("Scheduler.codegen", 1200, 1299, 12, compile_id="0/0"),
    ]


def test_own_times_add_up_to_the_time_of_compiling() -> None:
    summary = summary_of(profile_of(compiled()))
    assert summary.compile_ns == 1100 * MS
    assert sum(row.self_ns for row in summary.phases) == summary.compile_ns
    # dynamo 110, compile_attempt 10, backend_compile 20 and the backward's frame 1 are between phases
    assert summary.compile_ns - summary.named_ns == 141 * MS
    assert summary.accounted == pytest.approx(1 - 141 / 1100)
    assert (summary.imports_ns, summary.elsewhere_ns, summary.elsewhere_count) == (50 * MS, 500 * MS, 1)


def test_phases_and_passes_come_slowest_first() -> None:
    summary = summary_of(profile_of(compiled()))
    rows = [(row.name, row.self_ns // MS, row.count) for row in summary.phases]
    slowest = [("passes in post_grad_passes", 420, 3), ("compile_file", 250, 1), ("bytecode_tracing", 140, 1)]
    assert rows[:4] == [*slowest, ("dynamo", 110, 1)] and ("imports", 50, 1) in rows
    passes = [(row.name, row.total_ns // MS, row.count, row.longest_ns // MS) for row in summary.passes]
    assert passes == [("post_grad_passes.slow", 400, 1, 400), ("post_grad_passes.quick", 20, 2, 10)]


def test_a_frame_with_nothing_inside_is_the_phase_itself_and_a_phase_in_itself_is_counted_once() -> None:
    spans = [span("dynamo", 0, 100), span("backend_compile", 0, 100, 0)]
    assert summary_of(profile_of(spans)).accounted == 1.0
    inside = [*spans, span("bytecode_tracing", 0, 10, 1)]
    assert summary_of(profile_of(inside)).accounted == pytest.approx(0.1)
    spans = [span("a", 0, 100), span("a", 10, 60, 0), span("a", 20, 30, 1)]
    (row,) = summary_of(profile_of(spans)).phases
    assert (row.total_ns, row.self_ns, row.count) == (100 * MS, 100 * MS, 3)
    assert [wall // MS for wall, _ in self_times(spans)] == [50, 40, 10]


def test_functions() -> None:
    compiles = [
        Compile("0/0", function="f", file="a.py", line=3),
        Compile("0/0", direction="backward"),
        Compile("1/0", function="g", failure="BackendCompilerFailed"),
    ]
    first, second = summary_of(profile_of(compiled(), compiles=compiles)).functions
    assert (first.function, first.where, first.compiles) == ("f", "a.py:3", 2)
    assert (first.forward_ns, first.backward_ns) == (1000 * MS, 100 * MS)
    assert (second.compile_id, second.failure) == ("1/0", "BackendCompilerFailed")


def test_caches_are_told_as_they_answered() -> None:
    caches = [CacheEvent("fx_graph", "miss"), CacheEvent("fx_graph", "bypass", reason="a custom pass")]
    spans = [*compiled(), span("load_library", 0, 1, 9, kind="load", detail="a.so")]
    profile = profile_of(spans, caches=caches)
    cold = summary_of(profile)
    told = [(row.cache, row.hits, row.misses, row.bypassed) for row in cold.caches]
    assert (cold.warm, told) == (False, [("fx_graph", 0, 1, 1), ("cpp", 0, 1, 0)])
    (said,) = [line for line in profile_lines(profile, top=3) if line.startswith("FX graph cache: ")]
    assert said.startswith(
        "FX graph cache: 0 hits, 1 misses, 1 bypassed (a custom pass); to be cached, your pass must be"
    )
    profile = profile_of([*spans, span("load_library", 0, 1, 9, kind="load", detail="b.so")])
    warm = summary_of(profile)
    assert warm.warm and (warm.caches[0].hits, warm.caches[0].misses) == (1, 1)
    assert any(line.startswith("warm: ") for line in profile_lines(profile, top=3))


def test_nothing_compiled() -> None:
    profile = profile_of([])
    summary = summary_of(profile)
    assert (summary.compile_ns, summary.accounted, summary.phases) == (0, 1.0, [])
    assert "nothing was compiled" in profile_lines(profile, top=3)


def test_a_slower_pass_leads_the_diff() -> None:
    before, slower = profile_of(compiled()), compiled()
    for index in (1, 2, 5, 9):  # the compiler's run takes longer, and with it everything around it
        slower[index] = msgspec.structs.replace(slower[index], end_ns=slower[index].end_ns + 300 * MS)
    assert compare_profiles(before, before).phases[0].delta_ns == 0
    diff = compare_profiles(before, profile_of(slower, torch="2.14"))
    assert [(row.name, row.delta_ns) for row in diff.phases[:1]] == [("compile_file", 300 * MS)]
    assert diff.phases[1].delta_ns == 0
    assert diff.compile_after_ns - diff.compile_before_ns == 300 * MS
    assert diff.notes == ["torch 2.13 against 2.14"]


def test_a_pass_that_is_gone_is_in_the_diff() -> None:
    diff = compare_profiles(profile_of(compiled()[:9]), profile_of(compiled()[:7]))
    gone, same = diff.passes
    assert (gone.name, gone.delta_ns // MS) == ("post_grad_passes.quick", -20)
    assert (gone.count_before, gone.count_after, same.delta_ns) == (2, 0, 0)
    (line,) = (line for line in diff_lines(diff, "a", "b", top=9) if "post_grad_passes.quick" in line)
    assert "-0.020" in line and "2 -> 0" in line


def test_a_diff_of_cold_and_warm_says_so() -> None:
    hit = profile_of(compiled(), caches=[CacheEvent("fx_graph", "hit")], error="KeyError: 1")
    only = "only the second profile had hits in the cache fx_graph: 1"
    failed = "the program of the second profile failed: KeyError: 1"
    assert compare_profiles(profile_of(compiled()), hit).notes == [only, failed]


SCHEMA = {"X": {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"}, "M": {"name", "ph", "pid", "tid", "args"}}


def check_trace(document: dict[str, Any]) -> None:
    """The Trace Event Format, as far as it is used: required keys, types, and spans of a thread that nest."""
    assert set(document) == {"traceEvents", "displayTimeUnit", "otherData"}
    open_until: dict[int, list[float]] = {}
    for event in document["traceEvents"]:
        assert set(event) == SCHEMA[event["ph"]]
        assert isinstance(event["name"], str) and isinstance(event["pid"], int) and isinstance(event["tid"], int)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name") and isinstance(event["args"]["name"], str)
            continue
        assert event["dur"] >= 0 and event["ts"] >= 0
        ends = open_until.setdefault(event["tid"], [])
        while ends and ends[-1] <= event["ts"]:
            ends.pop()
        end = event["ts"] + event["dur"]
        assert not ends or end <= ends[-1] + 1e-3, event
        ends.append(end)


def test_trace(tmp_path: Path) -> None:
    assert export_profile(profile_of(compiled()), tmp_path / "t.json") == len(compiled())
    document = json.loads((tmp_path / "t.json").read_text())
    check_trace(document)
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert len(events) == len(compiled())
    assert events[0]["name"] == "import torch._inductor"
    assert (events[3]["ts"], events[3]["dur"], events[3]["args"]["compile_id"]) == (110_000.0, 190_000.0, "0/0")
    crossing = profile_of([span("a", 0, 10), span("b", 5, 20)])
    export_profile(crossing, tmp_path / "t.json")
    with pytest.raises(AssertionError):
        check_trace(json.loads((tmp_path / "t.json").read_text()))


def test_a_profile_comes_back_from_disk(tmp_path: Path) -> None:
    profile = profile_of(compiled(), compiles=[Compile("0/0")], notes=["x"], exit_code=3)
    write_profile(profile, tmp_path / "p.json")
    assert read_profile(tmp_path / "p.json") == profile


HEAD = '{{"format": "{}", "version": 1}}'


def test_what_is_no_profile_damaged_and_newer_ones(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    with pytest.raises(UsageError, match="cannot be read"):
        read_profile(path)
    for text in ("", "[]", "{}", HEAD.format("graphprobe-profile"), HEAD.format("other"), "\x00"):
        path.write_text(text)
        with pytest.raises(UsageError, match=r"p\.json is no profile"):
            read_profile(path)
    for bad in (span("a", 0, 1, parent=0), span("a", 0, 1, parent=7), span("a", 2, 1), span("a", 0, 1, thread=2)):
        write_profile(profile_of([bad]), path)
        with pytest.raises(UsageError, match=r"span 0 \(a\) does not fit"):
            read_profile(path)
    path.write_text(path.read_text().replace('"version": 1', '"version": 9'))
    with pytest.raises(UsageError, match="version 9"):
        read_profile(path)
