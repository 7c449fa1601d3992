"""The benchmarks of harm and of `diagnose` against torch's tools: they see what differs, and read what is there."""

import dataclasses

import cases
import pytest

from conftest import module_at


@pytest.fixture(scope="module")
def bench():
    return module_at("bench", "harm.py")


def test_what_differs_is_named(bench):
    program, mode = bench.PROGRAMS["mutating"], bench.Mode()
    plain = bench.Said(0, "a: 1\n", "W1121 05:08:28.185000 25 it warns\n", ("modes: 0", "outputs: 1", "rng: 2"))
    later = dataclasses.replace(plain, err="W1122 06:08:28.185000 26 it warns\ngraphprobe: missing: a file\n")
    assert bench.differences(program, mode, plain, later) == []

    def names(mode=mode, **changed):
        found = bench.differences(program, mode, plain, dataclasses.replace(plain, **changed))
        return [text.partition(":")[0] for text in found]

    assert names(evidence=("modes: 0", "outputs: 3", "rng: 2")) == ["outputs"]
    assert names(evidence=("modes: 0", "outputs: 1")) == ["rng"]
    assert names(evidence=(*plain.evidence, "more: 1")) == ["nothing"]
    assert names(code=7) == ["exit code"] and names(out="") == ["stdout"] and names(err="") == ["stderr"]
    known = bench.Mode(known=("modes",))
    assert names(known, evidence=("modes: 1", *plain.evidence[1:])) == []
    assert names(known, evidence=("modes: 1", "outputs: 3", "rng: 2")) == ["outputs"]
    assert names(bench.Mode(reports=True), code=1, out="a: 1\na report\n", err="") == []


@pytest.mark.parametrize(
    ("code", "text", "there", "found"),
    [
        (0, "", True, "opened"),
        (125, "UNDECIDED: the dump ended early", True, "opened"),
        (2, "error[run-not-found]: no run", False, "absent"),
        (2, "error[run-not-found]: no run", True, "refused"),
        (2, "error[a]: one\nerror[b]: two", False, "refused"),
        (1, "Traceback (most recent call last):", True, "a fault"),
        (125, "error[internal]: … please report it", True, "a fault"),
        (-11, "", True, "refused"),
    ],
)
def test_how_a_reader_may_end(code, text, there, found, bench):
    assert bench.verdict(code, text, there=there).startswith(found)


@pytest.mark.heavy
def test_programs_are_equal_and_stores_open(bench, tmp_path, capsys):
    started = bench.Bench(tmp_path, cold=False)
    try:
        modes = ["run", "dump tensor", "graph tensor", "profile", "explain", "interpreter"]
        assert bench.table(started, ["branching", "exits"], modes), capsys.readouterr().out
        assert bench.kills(started, 3, 0, ["run", "graph tensor"]), capsys.readouterr().out
    finally:
        started.close()
    said = capsys.readouterr().out
    assert "12 of 12 equal; 2 more differ and say so" in said
    assert "3 of 3 stores readable or absent" in said


REPRO = """
class Repro(torch.nn.Module):
    def forward(self, arg0_1, arg1_1):
        view = torch.ops.aten.view.default(arg0_1, [2, 3]);  arg0_1 = None
        getitem = view[0]
        relu = torch.ops.aten.relu.default(view);  view = None
        return (relu,)
"""


def test_cases_are_there_and_calls_left_are_those_of_the_minifiers_program(tmp_path):
    bench = module_at("bench", "diagnose.py")
    for case in bench.CASES.values():
        assert case.file in cases.names(case.folder)
    (tmp_path / "repro.py").write_text(REPRO)
    assert bench.calls_left(tmp_path / "repro.py") == ["aten.view.default", "aten.relu.default"]
