import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import Result

from cli.calling import call
from conftest import ROOT
from graphprobe.compare import open_dump as open_calls
from graphprobe.records import TensorMeta, TensorStats
from graphprobe.store import open_dump
from store.dump_helpers import OP, PLACE, new_writer, value, written

X = np.array([[1.5, -0.0], [np.nan, np.inf]], dtype=np.float32)
HALF = np.array([0x3F80, 0x4000], dtype=np.uint16)
"""1 and 2 in bfloat16."""


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """A dump of two calls: values with a gap, and statistics."""
    writer = new_writer(tmp_path / "dump")
    half = value("kwarg.bias", HALF)._replace(meta=TensorMeta("bfloat16", (2,)))
    values = [value("input.0", X), half, value("output.0", np.ones(9, np.float32), data=None)]
    writer.submit(OP, PLACE, values, time_ns=1_700_000_000_000_000_000)
    stats = TensorStats(4, max=1.5, min=-0.5, nan=1, digest="ab" * 8)
    place = msgspec.structs.replace(PLACE, model_name="m", model_id=0, data_index=1, step=None)
    writer.submit(OP, place, [value("output.0", X, data=None, stats=stats)])
    writer.close()
    return writer.time_dir


@pytest.fixture
def op_file(dump: Path) -> Path:
    return next(open_dump(dump).ops()).path


def invoke(*args: object, **options: Any) -> Result:
    return call("convert", *args, **options)


def test_an_op_to_npy_and_then_to_text(op_file: Path) -> None:
    result = invoke(op_file, code=0)
    npy = op_file.with_name(f"{op_file.name}.input.0.npy")
    assert op_file.name == "add.add_1.0.1700000000000000"
    np.testing.assert_array_equal(np.load(npy, allow_pickle=False), X)
    half = np.load(op_file.with_name(f"{op_file.name}.kwarg.bias.npy"))
    assert (half.dtype, half.tolist()) == (np.float32, [1, 2])
    assert f"Wrote {npy}: float32 2x2\n" in result.output
    assert "kwarg.bias.npy: bfloat16 2 (bfloat16 as float32, exact)" in result.output
    assert "Not converted" in result.output
    assert "output.0: its values were not kept" in result.output
    result = invoke(npy, "--to", "txt", code=0)
    text = npy.with_suffix(".txt")
    assert text.read_text().splitlines() == ["# dtype: float32", "# shape: 2 2", "1.5 -0", "nan inf"]
    np.testing.assert_array_equal(np.loadtxt(text, dtype=np.float32), X)


def test_a_dump_to_text_in_a_tree_of_its_own(dump: Path, tmp_path: Path) -> None:
    before = written(dump)
    invoke(tmp_path / "dump", "--to", "txt", "--out", tmp_path / "text", code=0)
    assert written(dump) == before
    inside = dump.relative_to(tmp_path / "dump").as_posix()
    assert written(tmp_path / "text") == {
        f"{inside}/0/ResNet-50/1/0/add.add_1.0.1700000000000000.input.0.txt",
        f"{inside}/0/ResNet-50/1/0/add.add_1.0.1700000000000000.kwarg.bias.txt",
        f"{inside}/0/m/0/1/stats.txt",
    }
    text = (tmp_path / "text" / inside / "0/ResNet-50/1/0/add.add_1.0.1700000000000000.kwarg.bias.txt").read_text()
    assert text == "# dtype: bfloat16\n# shape: 2\n# note: bfloat16 as float32, exact\n1\n2\n"
    table = (tmp_path / "text" / inside / "0/m/0/1/stats.txt").read_text().splitlines()
    assert table[2].split("\t")[:3] == ["Op Type", "Op Name", "Task ID"]
    assert table[3].split("\t")[10:13] == ["1.5", "-0.5", ""]


def test_statistics(dump: Path, tmp_path: Path) -> None:
    stats = dump / "0" / "m" / "0" / "1" / "stats.csv"
    invoke(stats, code=0)
    array = np.load(stats.with_suffix(".npy"), allow_pickle=False)
    assert array["Max"].tolist() == [1.5]
    assert array["Op Name"].tolist() == ["add_1"]
    assert np.isnan(array["Avg"]).all()
    assert (array["Nan"], array["Digest"]) == ([1], ["ab" * 8])
    invoke(stats.with_suffix(".npy"), "--to", "txt", code=0)


def test_nothing_is_overwritten_without_force(op_file: Path) -> None:
    there = op_file.with_name(f"{op_file.name}.kwarg.bias.npy")
    there.write_text("mine")
    before = written(op_file.parent)
    result = invoke(op_file, code=2)
    assert f"{there} exists already" in result.output
    assert "--force" in result.output
    assert written(op_file.parent) == before
    assert there.read_text() == "mine"
    invoke(op_file, "--force", code=0)
    assert np.load(there).tolist() == [1, 2]


def test_names_as_other_tools_write_them(op_file: Path, tmp_path: Path) -> None:
    for name in ("Add.Add_1.12.3.1700000000000000", "Add.Add_1.12.3.1700000000000000.safetensors"):
        folder = tmp_path / name[-5:]
        folder.mkdir()
        (folder / name).write_bytes(op_file.read_bytes())
        invoke(folder, code=0)
        assert (folder / "Add.Add_1.12.3.1700000000000000.input.0.npy").exists()


def test_json(dump: Path, tmp_path: Path) -> None:
    document = json.loads(invoke(dump, "--out", tmp_path / "out", "--json").stdout)
    assert [(one["slot"], one["dtype"], one["shape"], one["note"]) for one in document["written"]] == [
        ("input.0", "float32", [2, 2], ""),
        ("kwarg.bias", "bfloat16", [2], "bfloat16 as float32, exact"),
        ("", "statistics", [1], ""),
    ]
    assert all(Path(one["path"]).is_file() for one in document["written"])
    (gap,) = document["gaps"]
    assert gap.pop("source") == document["written"][0]["source"]
    assert gap == {"slot": "output.0", "reason": "its values were not kept", "expected": True}


def test_what_cannot_be_read_is_told_and_the_rest_is_written(dump: Path, op_file: Path, tmp_path: Path) -> None:
    other = op_file.with_name("add.add_1.7.8")
    other.write_bytes(op_file.read_bytes())
    index = dump / "ops.jsonl"
    lines = index.read_text().splitlines()
    lines.append(lines[0].replace("add.add_1.0.1700000000000000", "add.add_1.7.8"))
    index.write_text("\n".join(lines) + "\n")
    op_file.write_bytes(op_file.read_bytes()[:-1])
    result = invoke(dump, "--out", tmp_path / "out", code=125)
    assert f"Not converted: {op_file} has no header that can be read: it was cut off" in result.output
    names = {"add.add_1.7.8.input.0.npy", "add.add_1.7.8.kwarg.bias.npy", "stats.npy"}
    assert {name.rpartition("/")[2] for name in written(tmp_path / "out")} == names
    result = invoke(op_file, code=125)
    assert "error[schema]" in result.output


def test_wrong_use(op_file: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no tensors here, only words")
    (tmp_path / "values").mkdir()
    np.save(tmp_path / "values" / "a.npy", np.ones(3))
    np.save(tmp_path / "pickle.npy", np.array([{}], dtype=object), allow_pickle=True)
    for args, code, message in (
        ((tmp_path / "notes.txt",), 125, "no safetensors file"),
        ((tmp_path / "values",), 2, "no dump at"),
        ((tmp_path / "values" / "a.npy",), 125, "a .npy file already"),
        ((tmp_path / "pickle.npy", "--to", "txt"), 125, "cannot be read as a .npy file"),
        ((op_file, op_file), 2, "would both become"),
        ((op_file, "--out", tmp_path / "notes.txt" / "below"), 2, "cannot be written"),
    ):
        before = written(tmp_path)
        result = invoke(*args)
        assert (result.exit_code, message in result.output) == (code, True), (args, result.output)
        assert written(tmp_path) == before
    invoke(tmp_path / "values", "--to", "txt", code=0)
    assert (tmp_path / "values" / "a.txt").exists()


MSPROBE = ROOT / "tests" / "data" / "msprobe"


def test_a_dump_of_calls_in_the_layout_of_ptdbg(tmp_path: Path) -> None:
    words = (MSPROBE / "statistics", "--to", "ptdbg", "--out", tmp_path / "dump.pkl")
    result = invoke(*words, code=0)
    assert "Left out: calls of kind module: 8" in result.output and "step 1: a text holds one step" in result.output
    apis = [c.api for c in open_calls(MSPROBE / "statistics").calls(0, 0) if c.kind == "api"]
    assert [c.api for c in open_calls(tmp_path / "dump.pkl").calls(0, 0)] == apis
    again = invoke(*words, code=2)
    assert "exists already" in again.output
    invoke(*words, "--force", code=0)


@pytest.mark.parametrize("name", ["a/b", "../../x", "q" * 300, "n\0l", "two\nlines"])
def test_names_that_are_no_names_of_files(name: str, tmp_path: Path) -> None:
    source = tmp_path / "named"
    shutil.copytree(MSPROBE / "tensor", source)
    for path in source.rglob("dump.json"):
        document = json.loads(path.read_text())
        document["data"] = {key.replace("relu", name): item for key, item in document["data"].items()}
        path.write_text(json.dumps(document))
    shown = name.replace("\n", "\\n")
    labels = [call.label for call in open_calls(source).calls(0, 0)]
    assert sum(shown in label for label in labels) >= 2
    result = invoke(source, "--to", "ptdbg", "--out", tmp_path / "text.pkl", code=0)
    assert "values" not in result.output, result.output
    copy = open_calls(tmp_path / "text.pkl")
    kept = [c for c in open_calls(source).calls(0, 0) if c.kind == "api"]
    for one, _ in zip(copy.calls(0, 0), kept, strict=True):
        for slot in one.slots:
            if slot.value:
                copy.values(one, slot)
    assert not copy.problems()
    made = {path.name for path in tmp_path.iterdir() if not path.name.startswith("text_")}
    assert made == {"named", "text.pkl"}
