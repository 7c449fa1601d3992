"""Programs that are right and not to the last bit: told where healthy, a fault with `exact`, and silent where equal."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import graphprobe
from conftest import Finished
from graphprobe.testing.assertion import CompiledDiffers

X = torch.linspace(-2, 2, 24).reshape(4, 6)
INFINITE = "torch.full_like(value, torch.inf)"
"""Without it, the results of `one_ulp_off` are right."""


def program(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * 3).sum(1)


def one_ulp_off(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    """A backend whose results are right, and one unit in the last place too large."""

    def run(*args: Any) -> Any:
        return [torch.nextafter(value, torch.full_like(value, torch.inf)) for value in gm.forward(*args)]

    return run


def test_without_exact_it_is_healthy_and_says_by_how_much_it_differs(tmp_path: Path) -> None:
    found = graphprobe.diagnose(program, X, backend=one_ulp_off, out=tmp_path / "out")
    assert found.verdict == "healthy" and found.findings == []
    (one,) = found.differences
    assert (one.observable, one.elements, one.max_ulp, one.repeats) == ("outputs[0]", 1.0, 1.0, True)
    assert "Right, but not to the last bit. All of the elements of output 0 differ" in str(found)
    assert found.to_json()["differences"][0]["worst"]["of"] == 4


@pytest.mark.slow
@pytest.mark.usefixtures("warm_proofs")
def test_with_exact_it_is_a_fault_with_a_proof(run_warm: Callable[..., Finished], tmp_path: Path) -> None:
    with pytest.raises(CompiledDiffers, match="gives other last bits") as caught:
        graphprobe.assert_compiles_like_eager(program, X, backend=one_ulp_off, exact=True, out=tmp_path / "out")
    found = caught.value.diagnosis
    assert found.verdict == "fault" and found.exit_code == 1
    (finding,) = found.findings
    assert (finding.kind, finding.stage, finding.proof) == ("not_bitwise", "backend", "program"), finding.reason
    assert (finding.backend or "").startswith("one_ulp_off (")
    assert "All of the elements of output 0 differ, by up to 1 unit in the last place" in finding.reason
    repro = Path(finding.dossier or "") / "repro.py"
    for text, code in ((repro.read_text("utf-8"), 1), (repro.read_text("utf-8").replace(INFINITE, "value"), 0)):
        repro.write_text(text, "utf-8")
        done = run_warm(str(repro))
        assert done.code == code, done.out + done.err


@pytest.mark.parametrize("exact", [False, True])
def test_equal_bits_are_healthy_and_nothing_is_said(exact: bool, tmp_path: Path) -> None:
    found = graphprobe.diagnose(program, X, backend="aot_eager", exact=exact, out=tmp_path / "out")
    assert found.verdict == "healthy" and found.differences == [] and "last bit" not in str(found)


def test_what_does_not_repeat_itself_cannot_be_held_to_its_bits(tmp_path: Path) -> None:
    """A number that is another each time, and far below what rounding explains."""

    def unsteady(x: torch.Tensor) -> torch.Tensor:
        with (tmp_path / "seen").open("a") as file:  # a child of its own each time
            file.write("one more")
        return (x.sin() * 3).sum(1) * (1 + (tmp_path / "seen").stat().st_size * 2.0**-25)

    found = graphprobe.diagnose(unsteady, X, backend="eager", exact=True, out=tmp_path / "out")
    assert found.verdict != "fault" and found.findings == []


@pytest.mark.parametrize("value", ["2", "yes please"])
def test_the_environment_is_checked(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHPROBE_EXACT", value)
    with pytest.raises(graphprobe.SettingError, match="GRAPHPROBE_EXACT"):
        graphprobe.diagnose(program, X, backend="eager")


INDUCTOR = """
import torch
torch.manual_seed(0)
def decomposed():
    return (lambda x: torch.nn.functional.gelu(x) * 2), (torch.randn(64, 64),)
def vectorised():
    return (lambda x: torch.exp(x).sum(-1) * 2), (torch.randn(32, 4096),)
def narrow():
    return (lambda x: (x * 1.1 + x * 0.7) * x), (torch.randn(32, 4096, dtype=torch.bfloat16),)
def contracted():
    torch._inductor.config.cpp.enable_floating_point_contract_flag = "fast"
    return (lambda x, y: x * y + x), (torch.randn(32, 64), torch.randn(32, 64))
def equal():
    return (lambda x: x * 2 + 1), (torch.arange(32.0),)
"""


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "stage", "ops", "told"),
    [
        ("decomposed", "decomposition", ("aten.gelu.default",), "the first operation whose decomposition rounds"),
        ("vectorised", "codegen", ("aten.exp.default", "aten.sum.dim_IntList"), "is the first operation in them"),
        ("narrow", "codegen", ("aten.add.Tensor", "aten.mul.Tensor"), "emulate_precision_casts = True the bits are"),
        ("contracted", "codegen", ("aten.add.Tensor", None), "contract_flag = 'off' the bits are the same"),
        ("equal", "", (), ""),
    ],
)
def test_inductor(name: str, stage: str, ops: Any, told: str, diagnosed: Any, run_warm: Any, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(INDUCTOR)
    _, found = diagnosed("--exact", f"program.py:{name}", code=1 if stage else 0)
    if not stage:
        assert found["verdict"] == "healthy" and found["differences"] == []
        return
    (finding,) = found["findings"]
    assert (finding["kind"], finding["stage"], finding["proof"]) == ("not_bitwise", stage, "program")
    assert finding["op"] in ops  # showing a value may end what it is to show
    assert told in finding["reason"], finding["reason"]
    assert run_warm(str(tmp_path / finding["dossier"] / "repro.py")).code == 1
