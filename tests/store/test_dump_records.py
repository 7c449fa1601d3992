"""Names of folders and files of a dump."""

from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphprobe.store.dump_records import (
    Place,
    claim_time_folder,
    data_folder,
    folder_name_from_model,
    op_file,
    rank_folder,
)

STARTED = datetime(2024, 1, 31, 23, 59, 59)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ge_default_20200808163719_121", "ge_default_20200808163719_121"),
        ("ResNet-50", "ResNet-50"),
        ("a.b/c\\d e", "a_b_c_d_e"),
        ("..", "__"),
        ("", "unnamed"),
        ("-rf", "_rf"),
        ("a\n\0*?:<>|\"'$`~;&", "a" + "_" * 15),
        ("模型", "模型"),
        ("\udcff", "_"),
        ("f+g=h@i,j#k", "f+g=h@i,j#k"),
    ],
)
def test_names_of_models(name: str, expected: str) -> None:
    assert folder_name_from_model(name) == expected


@given(st.text(), st.text())
def test_any_name_makes_a_folder_and_a_file(tmp_path_factory: pytest.TempPathFactory, a: str, b: str) -> None:
    root = tmp_path_factory.mktemp("names")
    folder = root / data_folder(Place(model_name=a, model_id=0, data_index=3))
    folder.mkdir(parents=True)
    file = folder / op_file(a, b, 5, 10**15)
    file.write_bytes(b"x")
    (folder / f"{file.name}.{'x' * 64}.npy").write_bytes(b"x")
    assert [path.name for path in root.iterdir()] == ["0"]
    assert len(folder.relative_to(root).parts) == 4


def test_long_names_are_told_apart() -> None:
    one, other = folder_name_from_model("模" * 300 + "a"), folder_name_from_model("模" * 300 + "b")
    assert one != other
    assert len(one.encode()) <= 128
    assert op_file("t" * 300, "n", 0, 1) != op_file("t" * 301, "n", 0, 1)


def test_names_of_ops() -> None:
    assert op_file("aten.add.Tensor", "add 1/模", 3, 17) == "aten_add_Tensor.add_1__.3.17"


def test_a_folder_is_claimed_once(tmp_path: Path) -> None:
    names = [claim_time_folder(tmp_path, world_size=8, rank=3, started=STARTED).name for _ in range(3)]
    assert names == ["20240131235959", "20240201000000", "20240201000001"]
    assert [path.name for path in tmp_path.iterdir()] == [rank_folder(8, 3)] == ["worldsize8_global_rank3"]


def test_a_dump_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        claim_time_folder(tmp_path / "absent", world_size=1, rank=0, started=STARTED)
