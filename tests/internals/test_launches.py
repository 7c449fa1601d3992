"""`captured_ops.json` against an independent record of what ran, and the recording itself in a small module."""

import json
import threading
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from graphprobe.internals.launch_io import declarations
from graphprobe.internals.launches import LaunchTap

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


@pytest.fixture
def generated() -> Iterator[tuple[types.ModuleType, list[Any]]]:
    """A module as Inductor writes it, and what was called; after the test it has the globals that it had before."""
    log: list[Any] = []
    module = types.ModuleType("generated")
    ops = types.SimpleNamespace(mine=_OpNamespace("mine", log))
    vars(module).update(
        kernel_0=Callable0("kernel_0", log), extern_kernels=Callable0("extern", log), aten=Callable0("aten", log),
        torch=types.SimpleNamespace(ops=ops, float32="f32"),
    )  # fmt: skip
    exec(compile(SOURCE.split("kernel_0 = async")[0], "generated.py", "exec"), vars(module))
    before = dict(vars(module))
    yield module, log
    assert {name: id(value) for name, value in vars(module).items()} == {n: id(v) for n, v in before.items()}


Generated = tuple[types.ModuleType, list[Any]]


def test_arguments_and_results_pass_through(generated: Generated) -> None:
    assert list(declarations(SOURCE)) == ["kernel_0", "kernel_1", "kernel_2"]
    module, log = generated
    module.call([])
    plain, kernel = list(log), module.kernel_0
    log.clear()
    tap = LaunchTap(module, SOURCE)
    with tap.recording():
        assert module.kernel_0 is not kernel
        assert module.call([]) == 42
    assert log == plain
    assert [(launch.name, launch.kind, launch.line) for launch in tap.launches] == [
        ("kernel_0", "kernel", 3),
        ("kernel_0", "kernel", 4),
        ("extern_kernels.mm", "extern", 5),
        ("mine.twice.default", "op", 6),
        ("aten.sort.default", "op", 7),
    ]
    assert (tap.launches[0].arguments, tap.launches[2].arguments) == (("1", "2.5"), ("3", "out=4"))


def test_globals_come_back_when_a_launch_raises(generated: Generated, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*args: Any) -> None:
        raise ZeroDivisionError("in a kernel")

    module, _ = generated
    monkeypatch.setattr(module, "kernel_0", refuses)
    with pytest.raises(ZeroDivisionError) as caught, LaunchTap(module, SOURCE).recording():
        module.call([])
    assert module.kernel_0 is refuses
    assert [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)][-1] == "refuses"


@pytest.mark.parametrize("shared", [False, True])
def test_overlapping_recordings_of_one_module(shared: bool, generated: Generated) -> None:
    """Two threads, in and out in turn: A in, B in, A out, B out. `shared`: both record with the same tap's module."""
    module, _ = generated
    first = LaunchTap(module, SOURCE)
    second = first if shared else LaunchTap(module, SOURCE)
    begin, a_in, b_in, a_out, end = (threading.Event() for _ in range(5))

    def work(tap: LaunchTap, names: str, after: threading.Event, tell: threading.Event, until: threading.Event) -> None:
        after.wait(10)
        with tap.recording():
            tell.set()
            until.wait(10)
            for name in names:
                module.kernel_0(name)
        (a_out if names == "A" else end).set()

    given = [(first, "A", begin, a_in, b_in), (second, "BB", a_in, b_in, a_out)]
    threads = [threading.Thread(target=work, args=args) for args in given]
    begin.set()
    for thread in threads:
        thread.start()
    b_in.wait(10)
    module.kernel_0("main")  # a third thread that records nothing is not recorded
    for thread in threads:
        thread.join(20)
    seen = [[launch.arguments[0] for launch in tap.launches] for tap in (first, second)]
    assert seen == ([["'A'", "'B'", "'B'"]] * 2 if shared else [["'A'"], ["'B'", "'B'"]])


def test_taps_on_one_launch_all_see_it_from_the_outside_in(generated: Generated) -> None:
    module, log = generated
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
        assert len(seen) == 20, "one that is entered twice sees a launch once"
        module.kernel_0(1)
    first = [
        "outer before kernel_0 line 3",
        "inner before kernel_0 line 3",
        "inner after kernel_0",
        "outer after kernel_0",
    ]
    assert seen[:4] == first
    assert [launch.arguments[0] for launch in middle.launches] == ["'changed'"] * 6, "what the outer one passes on"
    assert [launch.line for launch in middle.launches[:5]] == [3, 4, 5, 6, 7]
    assert (len(seen), len(log)) == (22, 6)
