"""A case is read again from what was written of it, and its folder comes through kills and strangers."""

import msgspec
import pytest
import torch
from reduction.reduction_cases import case_of

from graphprobe.diagnose.dossier.writer import write_dossier
from graphprobe.diagnose.reduction.case_folder import STATE, CaseFolder, State, clear_leftovers, exchange, finding_of
from graphprobe.diagnose.reduction.load_case import load_case
from graphprobe.engine.values import capture, to_bytes
from graphprobe.errors import UsageError
from graphprobe.probe.formats.fx_py import fx_py_source


@pytest.fixture(scope="module")
def case():
    return case_of(lambda x, w: (x @ w).relu(), (torch.randn(2, 3), torch.randn(3, 3)), **{"cpp__simdlen": 8})


def test_a_dossier(case, tmp_path):
    write_dossier(tmp_path / "case", case, finding_of(case, ""))
    for path in (tmp_path / "case", tmp_path / "case" / "repro.py"):
        again = load_case(path)
        assert [(n.op, n.name) for n in again.graph.graph.nodes] == [(n.op, n.name) for n in case.graph.graph.nodes]
        assert again.configs["inductor"] == {"cpp.simdlen": 8}
        assert all(map(torch.equal, again.calls[0].restore(), case.calls[0].restore()))
    (tmp_path / "case" / "call0.inputs.json").unlink()
    with pytest.raises(UsageError, match=r"lacks call0\.inputs"):
        load_case(tmp_path / "case")


def test_a_graph_of_a_run_with_the_inputs_beside_it(case, tmp_path):
    script = fx_py_source(case.graph, title="t", eager=True)
    (tmp_path / "graph.py").write_text(script.source)
    values, records = to_bytes(capture([torch.ones(2, 3), torch.ones(3, 3, requires_grad=True)]))
    (tmp_path / "inputs.safetensors").write_bytes(values)
    (tmp_path / "inputs.json").write_bytes(records)
    again = load_case(tmp_path / "graph.py")
    assert (again.grad, again.backend) == (True, "inductor")
    assert torch.equal(again.calls[0].restore()[0], torch.ones(2, 3))


def test_a_graph_of_a_run_without_inputs_gets_some_of_the_shapes_recorded(case, tmp_path):
    inputs = [torch.zeros(2, 3), torch.zeros(3, 3)]
    (tmp_path / "graph.py").write_text(fx_py_source(case.graph, title="t", inputs=inputs).source)
    assert [v.shape for v in load_case(tmp_path / "graph.py").calls[0].restore()] == [(2, 3), (3, 3)]


@pytest.mark.parametrize(
    ("text", "why"),
    [("x = 1\n", "defines no build"), ("raise ValueError('no')\n", "cannot be imported: ValueError: no")],
)
def test_other_files(text, why, tmp_path):
    (tmp_path / "other.py").write_text(text)
    with pytest.raises(UsageError, match=why):
        load_case(tmp_path / "other.py")


def test_what_a_killed_process_left_is_put_right(tmp_path):
    (tmp_path / ".repro.old").mkdir()
    (tmp_path / ".repro.old" / "repro.py").write_text("old")
    (tmp_path / ".repro.new").mkdir()
    clear_leftovers(tmp_path)
    assert (tmp_path / "repro" / "repro.py").read_text() == "old"
    assert not (tmp_path / ".repro.new").exists()


def test_two_folders_change_places(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name / name).mkdir(parents=True)
    if exchange(tmp_path / "a", tmp_path / "b"):
        assert (tmp_path / "a" / "b").is_dir() and (tmp_path / "b" / "a").is_dir()


def test_a_check_that_the_folder_names_is_not_taken(tmp_path):
    """A folder that somebody else made brings no shell command with it."""
    asked = State(identity="the same")
    (tmp_path / "original").mkdir()
    (tmp_path / STATE).write_bytes(msgspec.json.encode(State(identity="the same", check="touch pwned")))
    with pytest.raises(UsageError, match="with another --check"):
        CaseFolder.open(tmp_path, None, asked, resume=True)
    (tmp_path / STATE).write_bytes(msgspec.json.encode(asked))
    assert CaseFolder.open(tmp_path, None, asked, resume=True).state.check is None
