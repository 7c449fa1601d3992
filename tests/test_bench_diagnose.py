"""The benchmark of `diagnose` against torch's tools: its cases exist, and it reads the minifier's programs."""

import cases
import pytest

from conftest import module_at

REPRO = """
class Repro(torch.nn.Module):
    def forward(self, arg0_1, arg1_1):
        view = torch.ops.aten.view.default(arg0_1, [2, 3]);  arg0_1 = None
        getitem = view[0]
        relu = torch.ops.aten.relu.default(view);  view = None
        return (relu,)
"""


@pytest.fixture(scope="module")
def bench():
    return module_at("bench", "diagnose.py")


def test_cases_are_there(bench):
    for case in bench.CASES.values():
        assert case.file in cases.names(case.folder)


def test_calls_left_are_those_of_the_program(bench, tmp_path):
    repro = tmp_path / "repro.py"
    repro.write_text(REPRO)
    assert bench.calls_left(repro) == ["aten.view.default", "aten.relu.default"]
