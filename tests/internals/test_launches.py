"""`captured_ops.json` against an independent record of what ran, and the recording itself in a small module."""

from __future__ import annotations

import json
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphprobe.internals.launches.launches import LaunchTap, kernel_names

PROGRAM = Path(__file__).parent / "programs" / "launch_order.py"
CASES = ("mlp", "conv", "dropout", "cond_true", "cond_false", "fallbacks")


@pytest.fixture(scope="module")
def records(run_warm: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    done = run_warm(str(PROGRAM), str(tmp_path_factory.mktemp("launches")), env={"OMP_NUM_THREADS": "1"})
    assert done.code == 0, done.err[-4000:]
    return dict(json.loads(done.out.partition("RESULT ")[2]))


@pytest.mark.heavy
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("case", CASES)
def test_order_is_the_profilers(case: str, direction: str, records: dict[str, Any]) -> None:
    record = records[case][direction]
    assert record["recorded"] == record["profiled"]
    assert len(record["recorded"]) >= 1
    assert record["starts"] == sorted(record["starts"])


@pytest.mark.heavy
def test_the_cases_have_kernels_and_library_calls(records: dict[str, Any]) -> None:
    names = {case: records[case]["forward"]["recorded"] for case in CASES}
    assert names["mlp"].count("addmm") == 2
    assert names["conv"].count("convolution") == 2
    assert "randint" in names["dropout"]
    assert {"sort", "cumsum", "topk"} & set(names["fallbacks"])
    # The two branches differ, and only one of them ran.
    assert names["cond_true"] != names["cond_false"]
    assert any("relu" in name for name in names["cond_true"])
    assert not any("relu" in name for name in names["cond_false"])


SOURCE = """
def call(args):
    kernel_0(1, 2.5)
    kernel_0.run("x")
    extern_kernels.mm(3, out=4)
    torch.ops.mine.twice.default(5)
    aten.sort.default(6)
    return extern_kernels.constant
kernel_0 = async_compile.cpp_pybinding('...')
kernel_1 = kernel_2 = async_compile.triton('...')
not_a_kernel = something(1)
"""


class Callable0:
    def __init__(self, name: str, log: list[Any]) -> None:
        self._name = self.name = name
        self._log = log

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        self._log.append((self._name, args, kwargs))
        return self._name

    def run(self, *args: Any) -> str:
        return self(*args)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        return 42 if attribute == "constant" else Callable0(f"{self._name}.{attribute}", self._log)


class _OpNamespace(Callable0):
    """Named as torch's class, by which the recorder knows it."""


def made() -> tuple[types.ModuleType, list[Any]]:
    log: list[Any] = []
    module = types.ModuleType("generated")
    ops = types.SimpleNamespace(mine=_OpNamespace("mine", log))
    names = vars(module)
    names.update(
        kernel_0=Callable0("kernel_0", log), extern_kernels=Callable0("extern", log), aten=Callable0("aten", log),
        torch=types.SimpleNamespace(ops=ops, float32="f32"),
    )  # fmt: skip
    exec(compile(SOURCE.split("kernel_0 = async")[0], "generated.py", "exec"), names)
    return module, log


def test_kernel_names() -> None:
    assert kernel_names(SOURCE) == ["kernel_0", "kernel_1", "kernel_2"]


def test_arguments_and_results_pass_through_and_the_globals_come_back() -> None:
    module, log = made()
    module.call([])
    plain = list(log)
    log.clear()
    before = dict(vars(module))
    tap = LaunchTap(module, SOURCE)
    with tap.recording():
        assert module.kernel_0 is not before["kernel_0"]
        assert module.call([]) == 42
    assert log == plain
    assert [(launch.name, launch.kind, launch.line) for launch in tap.launches] == [
        ("kernel_0", "kernel", 3),
        ("kernel_0", "kernel", 4),
        ("extern_kernels.mm", "extern", 5),
        ("mine.twice.default", "op", 6),
        ("aten.sort.default", "op", 7),
    ]
    assert tap.launches[0].arguments == ("1", "2.5")
    assert tap.launches[2].arguments == ("3", "out=4")
    assert {name: id(value) for name, value in vars(module).items()} == {n: id(v) for n, v in before.items()}


def test_globals_come_back_when_a_launch_raises() -> None:
    module, _ = made()
    before = dict(vars(module))

    def refuses(*args: Any) -> None:
        raise ZeroDivisionError("in a kernel")

    vars(module)["kernel_0"] = before["kernel_0"] = refuses
    tap = LaunchTap(module, SOURCE)
    with pytest.raises(ZeroDivisionError) as caught, tap.recording():
        module.call([])
    assert vars(module) == before
    frames = []
    trace = caught.value.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert frames[-1] == "refuses"


@pytest.mark.parametrize("shared", [False, True])
def test_overlapping_recordings_of_one_module(shared: bool) -> None:
    """Two threads, in and out in turn: A in, B in, A out, B out. `shared`: both record with the same tap's module."""
    module, _ = made()
    before = dict(vars(module))
    taps = [LaunchTap(module, SOURCE), LaunchTap(module, SOURCE)]
    if shared:
        taps[1] = taps[0]
    turns = [threading.Event() for _ in range(4)]

    def first() -> None:
        with taps[0].recording():
            turns[0].set()
            turns[1].wait(10)
            module.kernel_0("A")
        turns[2].set()

    def second() -> None:
        turns[0].wait(10)
        with taps[1].recording():
            turns[1].set()
            turns[2].wait(10)
            module.kernel_0("B")
            module.kernel_0("B")

    threads = [threading.Thread(target=target) for target in (first, second)]
    for thread in threads:
        thread.start()
    # A third thread that records nothing is not recorded.
    turns[1].wait(10)
    module.kernel_0("main")
    for thread in threads:
        thread.join(20)
    assert {name: id(value) for name, value in vars(module).items()} == {n: id(v) for n, v in before.items()}
    seen = [[launch.arguments for launch in tap.launches] for tap in taps]
    if shared:
        assert seen[0] == [("'A'",), ("'B'",), ("'B'",)]
    else:
        assert seen == [[("'A'",)], [("'B'",), ("'B'",)]]


def test_taps_on_one_launch_all_see_it_from_the_outside_in() -> None:
    module, log = made()
    before = dict(vars(module))
    seen: list[str] = []

    def around(name: str, *, bigger: bool = False) -> Any:
        def through(launching: Any) -> Any:
            seen.append(f"{name} before {launching.name} line {launching.line}")
            if bigger:
                launching.args = ("changed",)
            result = launching.run()
            seen.append(f"{name} after {launching.name}")
            return result

        return through

    outer = LaunchTap(module, SOURCE, around=around("outer", bigger=True))
    middle, inner = LaunchTap(module, SOURCE), LaunchTap(module, SOURCE, around=around("inner"))
    with outer.recording(), middle.recording():
        with inner.recording(), outer.recording():
            assert module.call([]) == 42
        assert len(middle.launches) == 5
        seen_by_both = list(seen)
        module.kernel_0(1)
    assert seen_by_both[:4] == [
        "outer before kernel_0 line 3",
        "inner before kernel_0 line 3",
        "inner after kernel_0",
        "outer after kernel_0",
    ]
    assert len(seen_by_both) == 20, "one that is entered twice sees a launch once"
    assert [launch.arguments[0] for launch in middle.launches] == ["'changed'"] * 6, "what the outer one passes on"
    assert [launch.line for launch in middle.launches[:5]] == [3, 4, 5, 6, 7]
    assert len(seen) - len(seen_by_both) == 2 and len(log) == 6
    assert {name: id(value) for name, value in vars(module).items()} == {n: id(v) for n, v in before.items()}
