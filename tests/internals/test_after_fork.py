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


@pytest.mark.parametrize(
    ("usable", "asked"), [(["narrow"], None), (["wide", "narrow"], True), (["wide", "narrow"], False)]
)
def test_nothing_is_said_where_one_cannot_be_used_or_the_user_has_set_it(
    monkeypatch: pytest.MonkeyPatch, usable: list[str], asked: bool | None
) -> None:
    Probed(monkeypatch, usable).tried()
    with config.patch({"cpp.vec_isa_ok": asked}):
        assert instructions_known() == {}


def test_a_proof_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Probed(monkeypatch, ["wide", "narrow"]).tried()
    monkeypatch.delenv(INSTRUCTIONS_OK, raising=False)
    script = tmp_path / "repro.py"
    script.write_text(f"import os; print(os.environ.get({INSTRUCTIONS_OK!r}))", "utf-8")
    with config.patch({"cpp.vec_isa_ok": None}):
        assert run_script([str(script)], 60, "codegen") == (0, "1\n")


FLAGS = """
import json, sys
import torch._inductor.config as config
import torch._inductor.cpu_vec_isa as v
config.cpp.vec_isa_ok = json.loads(sys.argv[1])
v.valid_vec_isa_list.cache_clear()
isa = v.pick_vec_isa()
print(isa, isa.build_arch_flags())
"""


@pytest.mark.heavy
def test_the_same_instructions_are_generated(run_warm: Callable[..., Finished]) -> None:
    tried, told = run_warm("-c", FLAGS, "null"), run_warm("-c", FLAGS, "true")
    assert tried.code == told.code == 0, tried.err + told.err
    assert tried.out == told.out
