"""`graphprobe.profile()` around compiles: what is seen, what is told, and that nothing else changes."""

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._functorch.config
import torch._inductor.config

import graphprobe
from analysis.test_timing import check_trace
from graphprobe.analysis.timing import FRAMES, compare_profiles, enclosing, read_profile
from graphprobe.probe.profile import profile

NAME = "post_grad_passes.post_grad_custom_post_pass"


def train() -> torch.Tensor:
    x = torch.linspace(0, 1, 8, requires_grad=True)
    y = torch.compile(lambda x: (x.sin() * 3).sum())(x)
    (y * torch.rand(())).backward()
    assert x.grad is not None
    return x.grad


class Sleeps:
    """A pass that does nothing for 0.3 s."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        time.sleep(0.3)

    def uuid(self) -> str:
        return "sleeps"


def profiled(custom: Callable[..., Any] | None) -> profile:
    """A forward and a backward by Inductor, nothing from a graph cache; C++ kernels may be there."""
    torch.compiler.reset()
    torch.manual_seed(0)
    settings = {"fx_graph_cache": False, "post_grad_custom_post_pass": custom}
    with torch._inductor.config.patch(settings), torch._functorch.config.patch(enable_autograd_cache=False):
        with graphprobe.profile(program="train") as p:
            train()
    return p


@pytest.fixture(scope="module")
def plain() -> profile:
    return profiled(None)


@pytest.fixture(scope="module")
def slowed() -> profile:
    return profiled(Sleeps())


@pytest.mark.slow
def test_a_slow_pass_comes_first(plain: profile, slowed: profile) -> None:
    first = slowed.summary().passes[0]
    assert first.name == NAME
    assert first.count == 2 and first.total_ns >= 600_000_000  # forward and backward
    assert NAME not in [row.name for row in plain.summary().passes]
    line = Sleeps.__call__.__code__.co_firstlineno
    assert slowed.result.own_passes == {"post_grad_custom_post_pass": f"Sleeps, {__file__}:{line}"}
    assert plain.result.own_passes == {}
    assert len(plain.summary().passes) >= 10


@pytest.mark.slow
def test_the_diff_names_the_slow_pass(plain: profile, slowed: profile) -> None:
    diff = compare_profiles(plain.result, slowed.result)
    assert diff.passes[0].name == NAME
    assert diff.passes[0].delta_ns >= 600_000_000 and diff.passes[0].count_before == 0
    assert compare_profiles(slowed.result, plain.result).passes[0].delta_ns < 0


@pytest.mark.parametrize("which", ["plain", "slowed"])
def test_spans_are_well_formed(which: str, request: pytest.FixtureRequest) -> None:
    result = request.getfixturevalue(which).result
    spans = result.spans
    assert len(spans) > 50 and not any(span.unfinished for span in spans)
    for span in spans:
        assert 0 <= span.begin_ns <= span.end_ns <= result.wall_ns
        if span.parent >= 0:
            outer = spans[span.parent]
            assert outer.thread == span.thread
            assert outer.begin_ns <= span.begin_ns and span.end_ns <= outer.end_ns
    by_parent: dict[tuple[int, int], int] = {}
    for span in spans:  # they begin in order; one may not begin before the one before it in the same span has ended
        assert span.begin_ns >= by_parent.get((span.thread, span.parent), 0)
        by_parent[span.thread, span.parent] = span.end_ns
    assert result.notes == []


def test_phases_account_for_the_compile(plain: profile) -> None:
    summary = plain.summary()
    assert sum(row.self_ns for row in summary.phases) == summary.compile_ns
    # By processor time: on a busy machine a thread may stand still anywhere. In a compile this small the fixed costs of
    # the frames weigh; bench/compile_profile.py has the share for GPT-2.
    assert sum(row.cpu_ns for row in summary.phases if row.name in FRAMES) < 0.3 * summary.compile_cpu_ns
    assert 0 < summary.named_ns <= summary.compile_ns
    names = {row.name for row in summary.phases}
    assert {"bytecode_tracing", "aot_trace_joint_graph", "GraphLowering.run", "build_guards"} <= names


def test_a_backward_that_is_compiled_late_belongs_to_its_function(plain: profile) -> None:
    result = plain.result
    (row,) = plain.summary().functions
    assert row.function == "<lambda>" and row.where is not None and row.where.startswith(__file__)
    assert row.forward_ns > 0 and row.backward_ns > 0 and row.compiles == 2
    late = [i for i, s in enumerate(result.spans) if s.name == "entire_backward_compile"]
    assert len(late) == 1 and result.spans[late[0]].parent == -1
    inside = {s.name for i, s in enumerate(result.spans) if late[0] in enclosing(result.spans, i)}
    assert {"GraphLowering.run", "Scheduler.codegen"} <= inside


def test_caches_that_are_off_are_told(plain: profile) -> None:
    caches = {row.cache: row for row in plain.summary().caches}
    assert (caches["fx_graph"].hits, caches["fx_graph"].disabled) == (0, 2)
    assert caches["cpp"].hits + caches["cpp"].misses == 2


def test_files(plain: profile, tmp_path: Path) -> None:
    assert read_profile(plain.save(tmp_path / "p.json")) == plain.result
    check_trace(json.loads(plain.save_trace(tmp_path / "t.json").read_text()))
    with pytest.raises(graphprobe.UsageError, match="exists already"):
        plain.save(tmp_path / "p.json")
    plain.save(tmp_path / "p.json", force=True)


def test_report(plain: profile, capsys: pytest.CaptureFixture[str]) -> None:
    plain.report(top=3)
    text = capsys.readouterr().out
    assert text.startswith("train: ") and "FX graph cache: 0 hits, 0 misses, 2 off" in text
    assert "phases, by time of their own" in text and "<lambda>" in text


def test_nothing_else_changes() -> None:
    x = torch.rand(5, requires_grad=True)

    def run() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        torch.compiler.reset()
        torch.manual_seed(1)
        y = torch.compile(lambda x: torch.nn.functional.dropout(x * 2).sum(), backend="aot_eager")(x)
        (grad,) = torch.autograd.grad(y, x)
        return y, grad, torch.get_rng_state()

    without = run()
    with graphprobe.profile() as p:
        inside = run()
    assert all(torch.equal(a, b) for a, b in zip(without, inside, strict=True))
    assert p.summary().compile_ns > 0


def test_an_exception_inside_a_compile_closes_the_spans() -> None:
    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        raise RuntimeError("planted")

    def run() -> str:
        torch.compiler.reset()
        with pytest.raises(Exception, match="planted") as caught:
            torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
        return f"{type(caught.value).__name__}: {caught.value}"

    without = run()
    with graphprobe.profile() as p:
        inside = run()
        again = torch.compile(lambda x: x + 2, backend="eager")(torch.ones(2))
    assert inside == without
    assert again.tolist() == [3.0, 3.0]
    assert not any(span.unfinished for span in p.result.spans)
    failures = {row.failure for row in p.summary().functions}
    assert failures == {None, "BackendCompilerFailed"}
    roots = [span.name for span in p.result.spans if span.parent < 0]
    assert roots.count("dynamo") == 2  # the second is not inside the first


def test_a_block_that_raises_keeps_its_profile() -> None:
    p = graphprobe.profile()
    compiled = torch.compile(lambda x: {}["the program's own"], backend="eager")
    with pytest.raises(KeyError), p:
        compiled(torch.ones(2))
    assert p.result.error is not None and p.result.error.startswith("KeyError: ")
    assert p.summary().compile_ns > 0


def test_threads_are_told_apart() -> None:
    def work(number: int) -> None:
        both_began.wait()
        torch.compile(lambda x: x * number + 1, backend="eager")(torch.ones(2))

    both_began = threading.Barrier(2, timeout=120)
    with graphprobe.profile() as p, ThreadPoolExecutor(2, "worker") as pool:
        list(pool.map(work, (2, 3)))
    result = p.result
    assert sorted(result.threads) == ["worker_0", "worker_1"]
    roots = [span for span in result.spans if span.parent < 0 and span.kind == "phase"]
    assert sorted(span.thread for span in roots) == [0, 1]
    assert all(result.spans[s.parent].thread == s.thread for s in result.spans if s.parent >= 0)


def test_wrong_use() -> None:
    p = graphprobe.profile()
    with pytest.raises(graphprobe.UsageError, match="has not been started"):
        p.report()
    with p:
        with pytest.raises(graphprobe.UsageError, match="still under way"):
            p.summary()
        with pytest.raises(graphprobe.UsageError, match="under way already"), graphprobe.profile():
            raise AssertionError("a second profile must be an error")
    with pytest.raises(graphprobe.UsageError, match="started before"), p:
        raise AssertionError("a profile is used once")
    assert p.result.spans == [] and p.summary().accounted == 1.0
    with graphprobe.profile():
        pass
