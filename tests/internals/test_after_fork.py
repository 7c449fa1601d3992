"""What another process is told of the test programs for vector instructions, which take seconds in each."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable
from pathlib import Path

import pytest
import torch._inductor.cpu_vec_isa as vec_isa
from torch._inductor import config

from conftest import Finished
from graphprobe.diagnose.dossier.proof_run import run_script
from graphprobe.internals.after_fork import INSTRUCTIONS_OK, instructions_known

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have one instruction set")


class Probed:
    """A processor with two instruction sets, of which a list can be compiled for; `tried()` runs the test programs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, usable: list[str]) -> None:
        self.tried = functools.cache(lambda: usable)
        monkeypatch.setattr(vec_isa, "valid_vec_isa_list", self.tried)
        monkeypatch.setattr(vec_isa, "supported_vec_isa_list", ["wide tiles", "wide", "narrow"])
        monkeypatch.setattr(vec_isa, "x86_isa_checker", lambda: ["narrow", "wide"])


def test_the_environment_says_that_all_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    probed = Probed(monkeypatch, ["wide", "narrow"])
    with config.patch({"cpp.vec_isa_ok": None}):
        assert instructions_known() == {}, "nobody has tried here"
        probed.tried()
        assert instructions_known() == {INSTRUCTIONS_OK: "1"}


def test_nothing_is_said_where_one_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    probed = Probed(monkeypatch, ["narrow"])
    probed.tried()
    with config.patch({"cpp.vec_isa_ok": None}):
        assert instructions_known() == {}


@pytest.mark.parametrize("asked", [True, False])
def test_what_the_user_has_set_stands(monkeypatch: pytest.MonkeyPatch, asked: bool) -> None:
    Probed(monkeypatch, ["wide", "narrow"]).tried()
    with config.patch({"cpp.vec_isa_ok": asked}):
        assert instructions_known() == {}


def test_a_proof_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Probed(monkeypatch, ["wide", "narrow"]).tried()
    monkeypatch.delenv(INSTRUCTIONS_OK, raising=False)
    script = tmp_path / "repro.py"
    script.write_text(f"import os; print(os.environ.get({INSTRUCTIONS_OK!r}))", "utf-8")
    with config.patch({"cpp.vec_isa_ok": None}):
        assert run_script([str(script)], 60, "codegen") == (0, "1\n")


FLAGS = "import torch._inductor.cpu_vec_isa as v; isa = v.pick_vec_isa(); print(isa, isa.build_arch_flags())"


@pytest.mark.heavy
def test_the_same_instructions_are_generated(run_python: Callable[..., Finished]) -> None:
    tried = run_python("-c", FLAGS, env={INSTRUCTIONS_OK: ""})
    told = run_python("-c", FLAGS, env={INSTRUCTIONS_OK: "1"})
    assert tried.code == told.code == 0, tried.err + told.err
    assert tried.out == told.out
