import re
from datetime import datetime
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from graphprobe.records import Direction
from graphprobe.store import layout

DIRECTIONS = st.sampled_from(get_args(Direction))


def test_names_are_those_of_the_documented_tree() -> None:
    assert layout.graph_file(0, "forward", number=0) == "model__0/forward/000_aot_forward_graph.txt"
    assert (
        layout.pass_file(1, "backward", "remove noop/ops", number=12)
        == "model__1/backward/012_aot_backward_graph_after_remove_noop_ops.txt"
    )
    assert layout.graph_file(0, "joint", number=3) == "model__0/joint/003_aot_joint_graph.txt"
    assert layout.graph_file(0, "pre_grad", number=0) == "model__0/pre_grad/000_pre_grad_graph.txt"
    assert (
        layout.ir_file(2, "forward", "optimized", number=7, extension="pbtxt")
        == "model__2/forward/007_aot_forward_optimized_graph.pbtxt"
    )
    assert layout.failure_file(0, "forward", "f", number=1234) == "model__0/forward/1234_aot_forward_FAILED_f.txt"
    assert layout.ops_file(0, "forward") == "model__0/forward/captured_ops.json"
    assert layout.code_file(0, "backward") == "model__0/backward/output_code.py"
    assert layout.compile_file(0) == "model__0/compile.json"
    assert layout.dynamo_file(0) == "model__0/dynamo_out_graph.txt"
    assert layout.graph_name("forward") == "aot_forward_graph"
    assert layout.ir_name("forward", "original") == "aot_forward_original_graph"
    started, name = datetime(2026, 1, 2, 3, 4, 5, 6), "run_2026_01_02_03_04_05_000006-pid_42"
    assert layout.run_folder(started=started, pid=42, rank=None) == name, "torch's time format"
    assert layout.run_folder(started=started, pid=42, rank=0) == f"{name}-rank_0"


@given(st.text(max_size=400))
def test_any_pass_name_makes_a_safe_bounded_file_name(name: str) -> None:
    safe = layout.file_name_from_pass(name)
    assert re.fullmatch(rf"[A-Za-z0-9._-]{{1,{layout.MAX_NAME_LENGTH}}}", safe)
    assert not safe.startswith((".", "-"))
    assert layout.file_name_from_pass(safe) == safe


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_]{0,60}[A-Za-z0-9]", fullmatch=True))
def test_ordinary_pass_names_are_kept(name: str) -> None:
    assert layout.file_name_from_pass(name) == name


@given(DIRECTIONS, st.lists(st.text(max_size=20), min_size=2, max_size=6))
def test_numbers_keep_files_apart(direction: Direction, names: list[str]) -> None:
    paths = [layout.pass_file(0, direction, name, number=number) for number, name in enumerate(names)]
    assert len({path.casefold() for path in paths}) == len(names)
    assert all(len(path.rsplit("/", 1)[-1]) < 200 and path.count("/") == 2 for path in paths)


@given(DIRECTIONS, st.integers(0, 998))
def test_files_sort_in_their_order(direction: Direction, number: int) -> None:
    assert layout.pass_file(0, direction, "zzz", number=number) < layout.graph_file(0, direction, number=number + 1)
