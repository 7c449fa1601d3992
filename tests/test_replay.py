"""`scripts/replay.py`: two records of one commit are the same, and whatever changes between two is seen."""

import shutil
from pathlib import Path
from types import ModuleType

import pytest

from conftest import module_at
from warm.pool import Warm


@pytest.fixture(scope="module")
def replay() -> ModuleType:
    module: ModuleType = module_at("scripts", "replay.py")
    return module


@pytest.fixture(scope="module")
def records(replay: ModuleType, warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("replay")
    before, after = folder / "before", folder / "after"
    for to in (before, after):
        replay.record(to, folder / "cache", replay.QUICK, python=warm.executable, jobs=1)
    return before / "quick", after / "quick"


VALUES = "files/values/rank0/values/N.safetensors.txt"


@pytest.mark.slow
def test_two_records_are_the_same(replay: ModuleType, records: tuple[Path, Path]) -> None:
    assert list(replay.differences(*records, "quick")) == []
    for number in range(3):
        assert "exit code 0\n" in (records[0] / f"{number:02}.txt").read_text("utf-8")
    assert "values/rank0/step0/calls.jsonl" in (records[0] / "tree.txt").read_text("utf-8").splitlines()
    assert len((records[0] / VALUES).read_text("utf-8").splitlines()) > 10


@pytest.mark.slow
def test_a_changed_value_and_a_changed_line_are_seen(
    replay: ModuleType, records: tuple[Path, Path], tmp_path: Path
) -> None:
    line = (records[1] / VALUES).read_text("utf-8").splitlines()[3]
    name, digest = line.rsplit(" ", 1)
    for number, (file, old, new) in enumerate(
        ((VALUES, line, f"{name} {digest[::-1]}"), ("02.txt", "exit code 0", "exit code 1"))
    ):
        after = tmp_path / str(number)
        shutil.copytree(records[1], after)
        text = (after / file).read_text("utf-8")
        assert old in text
        (after / file).write_text(text.replace(old, new, 1), "utf-8")
        [found] = replay.differences(records[0], after, "quick")
        assert f"-{old}\n" in found and f"+{new}\n" in found


@pytest.mark.slow
def test_a_renamed_file_is_seen(replay: ModuleType, records: tuple[Path, Path], tmp_path: Path) -> None:
    after = tmp_path / "after"
    shutil.copytree(records[1], after)
    (after / "files/mix/rank0/manifest.json.txt").rename(after / "files/mix/rank0/index.json.txt")
    assert list(replay.differences(records[0], after, "quick")) == [
        "only after: quick/files/mix/rank0/index.json.txt",
        "only before: quick/files/mix/rank0/manifest.json.txt",
    ]


@pytest.mark.slow
def test_a_changed_program_is_seen(
    replay: ModuleType, records: tuple[Path, Path], warm: Warm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "programs"
    shutil.copytree(replay.PROGRAMS, programs)
    program = programs / "mlp_eager.py"
    text = program.read_text("utf-8")
    assert "lr=0.1)" in text
    program.write_text(text.replace("lr=0.1)", "lr=0.2)"), "utf-8")
    monkeypatch.setattr(replay, "PROGRAMS", programs)
    replay.record(tmp_path / "record", tmp_path / "cache", replay.QUICK, python=warm.executable, jobs=1)
    found = "\n".join(replay.differences(records[0], tmp_path / "record" / "quick", "quick"))
    assert VALUES in found and "quick/files/mix/rank0/step1/calls.jsonl" in found and "loss" in found


def test_a_compare_without_a_record_says_how_to_make_one(
    replay: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        replay.main(["compare", str(tmp_path), "--case", "quick"])
    assert "make replay-record" in capsys.readouterr().err


def test_masks_hide_what_differs_from_run_to_run_and_nothing_else(replay: ModuleType, tmp_path: Path) -> None:
    masking = replay.Masking({"<work>": tmp_path})
    assert masking.text(f"{tmp_path}/out/run_2026_01_31_12_00_00_000000-pid_7/x took 3.1 s, 12 KiB") == (
        "<work>/out/run_TIME-pid_PID/x took TIME, SIZE"
    )
    assert masking.text("aten.relu.default at 0x7f0123456789, step 3, 2 calls, z 1.5, 1e-06") == (
        "aten.relu.default at ADDRESS, step 3, 2 calls, z 1.5, 1e-06"
    )
    assert masking.value({"elapsed_ns": 5, "nodes": 5, "timings_ms": {"a": 1}, "ops": [1]}) == {
        "elapsed_ns": "MASKED",
        "nodes": 5,
        "timings_ms": {"a": "MASKED"},
        "ops": [1],
    }
