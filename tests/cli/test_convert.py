from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from conftest import ROOT, Finished
from dump_helpers import OP, PLACE, new_writer, value, written
from graphprobe.cli.main import main
from graphprobe.compare.open import open_dump as open_calls
from graphprobe.records import TensorMeta, TensorStats
from graphprobe.store import layout
from graphprobe.store.dump_reader import open_dump
from graphprobe.store.dump_records import DumpValue, Place

X = np.array([[1.5, -0.0], [np.nan, np.inf]], dtype=np.float32)
HALF = np.array([0x3F80, 0x4000], dtype=np.uint16)
"""1 and 2 in bfloat16."""


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """A dump of two calls: values with a gap, and statistics."""
    writer = new_writer(tmp_path / "dump")
    values = [
        value("input.0", X),
        DumpValue("kwarg.bias", "input", TensorMeta("bfloat16", (2,)), HALF),
        DumpValue("output.0", "output", TensorMeta("float32", (9,))),
    ]
    writer.submit(OP, PLACE, values, time_ns=1_700_000_000_000_000_000)
    stats = TensorStats(4, max=1.5, min=-0.5, nan=1, digest="ab" * 8)
    place = Place(model_name="m", model_id=0, data_index=1)
    writer.submit(OP, place, [DumpValue("output.0", "output", TensorMeta("float32", (2, 2)), stats=stats)])
    writer.close()
    return writer.time_dir


@pytest.fixture
def op_file(dump: Path) -> Path:
    return next(open_dump(dump).ops()).path


def invoke(*args: object) -> Result:
    result = CliRunner().invoke(main, ["convert", *map(str, args)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_an_op_to_npy_and_then_to_text(op_file: Path) -> None:
    result = invoke(op_file)
    assert result.exit_code == 0, result.output
    npy = op_file.with_name(f"{op_file.name}.input.0.npy")
    assert op_file.name == "add.add_1.0.1700000000000000"
    np.testing.assert_array_equal(np.load(npy, allow_pickle=False), X)
    half = np.load(op_file.with_name(f"{op_file.name}.kwarg.bias.npy"))
    assert (half.dtype, half.tolist()) == (np.float32, [1, 2])
    assert f"Wrote {npy}: float32 2x2\n" in result.output
    assert "kwarg.bias.npy: bfloat16 2 (bfloat16 as float32, exact)" in result.output
    assert "Not converted" in result.output
    assert "output.0: its values were not kept" in result.output
    result = invoke(npy, "--to", "txt")
    assert result.exit_code == 0, result.output
    text = npy.with_suffix(".txt")
    assert text.read_text().splitlines() == ["# dtype: float32", "# shape: 2 2", "1.5 -0", "nan inf"]
    np.testing.assert_array_equal(np.loadtxt(text, dtype=np.float32), X)
    assert invoke(npy, "--to", "csv", "--out", op_file.parent / "csv").exit_code == 0
    rows = list(csv.reader((op_file.parent / "csv" / f"{npy.stem}.csv").read_text().splitlines()))
    assert rows == [["i0", "i1", "value"], ["0", "0", "1.5"], ["0", "1", "-0"], ["1", "0", "nan"], ["1", "1", "inf"]]


def test_a_dump_to_text_in_a_tree_of_its_own(dump: Path, tmp_path: Path) -> None:
    before = written(dump)
    result = invoke(tmp_path / "dump", "--to", "txt", "--out", tmp_path / "text")
    assert result.exit_code == 0, result.output
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


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,), (2, 3, 4)], ids=str)
def test_every_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    writer = new_writer(tmp_path)
    writer.submit(OP, PLACE, [value("output.0", array)])
    writer.close()
    assert invoke(tmp_path).exit_code == 0
    (npy,) = tmp_path.rglob("*.npy")
    np.testing.assert_array_equal(np.load(npy), array)
    for to in ("txt", "csv"):
        assert invoke(npy, "--to", to).exit_code == 0
        assert len(npy.with_suffix(f".{to}").read_text().splitlines()) >= (2 if to == "txt" else 1)


def test_statistics(dump: Path, tmp_path: Path) -> None:
    stats = dump / "0" / "m" / "0" / "1" / "stats.csv"
    assert invoke(stats).exit_code == 0
    array = np.load(stats.with_suffix(".npy"), allow_pickle=False)
    assert array["Max"].tolist() == [1.5]
    assert array["Op Name"].tolist() == ["add_1"]
    assert np.isnan(array["Avg"]).all()
    assert (array["Nan"], array["Digest"]) == ([1], ["ab" * 8])
    assert invoke(stats.with_suffix(".npy"), "--to", "txt").exit_code == 0
    result = invoke(stats, "--to", "csv")
    assert result.exit_code == 0
    assert "a csv already" in result.output
    assert invoke(stats, "--to", "csv", "--out", tmp_path / "copy").exit_code == 0
    assert (tmp_path / "copy" / "stats.csv").read_text().startswith("Op Type,Op Name,Task ID")


def test_nothing_is_overwritten_without_force(op_file: Path) -> None:
    there = op_file.with_name(f"{op_file.name}.kwarg.bias.npy")
    there.write_text("mine")
    before = written(op_file.parent)
    result = invoke(op_file)
    assert result.exit_code == 2
    assert f"{there} exists already" in result.output
    assert "--force" in result.output
    assert written(op_file.parent) == before
    assert there.read_text() == "mine"
    assert invoke(op_file, "--force").exit_code == 0
    assert np.load(there).tolist() == [1, 2]


def test_names_as_other_tools_write_them(op_file: Path, tmp_path: Path) -> None:
    for name in ("Add.Add_1.12.3.1700000000000000", "Add.Add_1.12.3.1700000000000000.safetensors"):
        folder = tmp_path / name[-5:]
        folder.mkdir()
        (folder / name).write_bytes(op_file.read_bytes())
        assert invoke(folder).exit_code == 0
        assert (folder / "Add.Add_1.12.3.1700000000000000.input.0.npy").exists()


def test_json(dump: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["convert", str(dump), "--out", str(tmp_path / "out"), "--json"])
    document = json.loads(result.stdout)
    assert [(one["slot"], one["dtype"], one["shape"], one["note"]) for one in document["written"]] == [
        ("input.0", "float32", [2, 2], ""),
        ("kwarg.bias", "bfloat16", [2], "bfloat16 as float32, exact"),
        ("", "statistics", [1], ""),
    ]
    assert all(Path(one["path"]).is_file() for one in document["written"])
    assert document["gaps"] == [
        {"source": document["written"][0]["source"], "slot": "output.0", "reason": "its values were not kept"}
        | {"expected": True}
    ]


def test_what_cannot_be_read_is_told_and_the_rest_is_written(dump: Path, op_file: Path, tmp_path: Path) -> None:
    other = op_file.with_name("add.add_1.7.8")
    other.write_bytes(op_file.read_bytes())
    index = dump / "ops.jsonl"
    lines = index.read_text().splitlines()
    lines.append(lines[0].replace("add.add_1.0.1700000000000000", "add.add_1.7.8"))
    index.write_text("\n".join(lines) + "\n")
    op_file.write_bytes(op_file.read_bytes()[:-1])
    result = invoke(dump, "--out", tmp_path / "out")
    assert result.exit_code == 125
    assert f"Not converted: {op_file} has no header that can be read: it was cut off" in result.output
    assert {name.rpartition("/")[2] for name in written(tmp_path / "out")} == {
        "add.add_1.7.8.input.0.npy",
        "add.add_1.7.8.kwarg.bias.npy",
        "stats.npy",
    }
    result = invoke(op_file)
    assert result.exit_code == 125
    assert "error[schema]" in result.output


def test_wrong_use(dump: Path, op_file: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("no tensors here, only words")
    (tmp_path / "values").mkdir()
    np.save(tmp_path / "values" / "a.npy", np.ones(3))
    for args, code, message in (
        ((tmp_path / "absent",), 2, "does not exist"),
        ((tmp_path / "empty",), 2, "no dump at"),
        ((tmp_path / "notes.txt",), 125, "no safetensors file"),
        ((tmp_path / "values",), 2, "no dump at"),
        ((tmp_path / "values" / "a.npy",), 125, "a .npy file already"),
        ((), 2, "missing argument"),
        ((op_file, "--to", "pt"), 2, "--to"),
        ((op_file, op_file), 2, "would both become"),
        ((op_file, "--out", tmp_path / "notes.txt"), 2, "is a file"),
    ):
        result = invoke(*args)
        assert (result.exit_code, message in result.output) == (code, True), (args, result.output)
    assert invoke(tmp_path / "values", "--to", "txt").exit_code == 0
    assert (tmp_path / "values" / "a.txt").exists()


def test_a_pickle_is_not_read(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{}], dtype=object), allow_pickle=True)
    result = invoke(tmp_path / "a.npy", "--to", "txt")
    assert result.exit_code == 125
    assert "cannot be read as a .npy file" in result.output
    assert written(tmp_path) == {"a.npy"}


def test_no_leftovers_when_the_folder_cannot_be_made(op_file: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = invoke(op_file, "--out", tmp_path / "file" / "below")
    assert result.exit_code == 2
    assert "cannot be written" in result.output
    assert not any(layout.TEMPORARY_PREFIX in name for name in written(tmp_path))


def test_converting_imports_no_torch(op_file: Path, run_python: Callable[..., Finished]) -> None:
    code = (
        "import sys\nsys.argv = ['graphprobe', 'convert', sys.argv[1]]\n"
        "try:\n    from graphprobe.cli.main import main\n    main()\n"
        "finally:\n    print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = run_python("-c", code, str(op_file))
    assert done.code == 0, done.err
    assert done.out.endswith("False True\n")


MSPROBE = ROOT / "tests" / "data" / "msprobe"


def test_a_dump_of_calls_in_the_layout_of_msprobe(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = invoke(MSPROBE / "tensor", "--to", "msprobe", "--out", out)
    assert result.exit_code == 0 and f"Wrote {out}" in result.output
    copy, source = open_calls(out), open_calls(MSPROBE / "tensor")
    assert [c.label for c in copy.calls(0, 0)] == [c.label for c in source.calls(0, 0)]
    again = invoke(MSPROBE / "tensor", "--to", "msprobe", "--out", out)
    assert again.exit_code == 2 and "is not empty" in again.output
    forced = invoke(MSPROBE / "tensor", "--to", "msprobe", "--out", out, "--force", "--json")
    assert json.loads(forced.stdout) == {"written": str(out), "format": "msprobe", "left_out": []}


def test_a_dump_of_calls_in_the_layout_of_ptdbg(tmp_path: Path) -> None:
    pkl = tmp_path / "dump.pkl"
    result = invoke(MSPROBE / "statistics", "--to", "ptdbg", "--out", pkl)
    assert result.exit_code == 0, result.output
    assert "Left out: calls of kind module: 8" in result.output and "step 1: a text holds one step" in result.output
    apis = [c.api for c in open_calls(MSPROBE / "statistics").calls(0, 0) if c.kind == "api"]
    assert [c.api for c in open_calls(pkl).calls(0, 0)] == apis
    again = invoke(MSPROBE / "statistics", "--to", "ptdbg", "--out", pkl)
    assert again.exit_code == 2 and "exists already" in again.output
    assert invoke(MSPROBE / "statistics", "--to", "ptdbg", "--out", pkl, "--force").exit_code == 0


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
    for form, out in (("msprobe", tmp_path / "copy"), ("ptdbg", tmp_path / "text.pkl")):
        result = invoke(source, "--to", form, "--out", out)
        assert result.exit_code == 0 and "values" not in result.output, result.output
        copy = open_calls(out)
        kept = [c for c in open_calls(source).calls(0, 0) if form == "msprobe" or c.kind == "api"]
        for call, other in zip(copy.calls(0, 0), kept, strict=True):
            assert form == "ptdbg" or call.label == other.label
            for slot in call.slots:
                if slot.value:
                    copy.values(call, slot)
        assert not copy.problems()
    made = {path.name for path in tmp_path.iterdir() if not path.name.startswith("text_")}
    assert made == {"named", "copy", "text.pkl"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "msprobe"], "needs --out"),
        (["--to", "ptdbg", "--out", "{tmp}/a.txt"], "ends with .pkl"),
        (["--to", "ptdbg", "--out", "{tmp}/no/a.pkl"], "there is no folder"),
        (["--to", "msprobe", "--out", "{tmp}/file"], "is a file"),
        (["--to", "msprobe", "--out", "{dump}/step0/x"], "lie one in the other"),
        (["{tmp}", "--to", "msprobe", "--out", "{tmp}/x"], "takes one dump, 2 are given"),
    ],
)
def test_wrong_use_of_an_export(arguments: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    dump = MSPROBE / "tensor"
    result = invoke(dump, *[text.format(tmp=tmp_path, dump=dump) for text in arguments])
    assert result.exit_code == 2 and message in result.output, result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]
