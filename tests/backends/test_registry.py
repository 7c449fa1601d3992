"""Names, options and entry points of the debug backends, and the ladder."""

from __future__ import annotations

import tomllib
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import Finished
from graphprobe import backends
from graphprobe.backends.graphs import accepted_options
from graphprobe.backends.table import LADDER, UNCOMPILED, between, resolve
from graphprobe.errors import GraphprobeWarning, UnsupportedTorchError, UsageError
from graphprobe.internals.names import require

SOURCE_NAMES = """eager eager_noexcept pre_dispatch_eager eager_debug ts invoke_subgraph aot_eager
aot_eager_default_partitioner aot_eager_decomp_partition aot_eager_decomp_partition_with_mode
aot_eager_decomp_partition_crossref aot_ts relu_compile_error_TESTING_ONLY relu_runtime_error_TESTING_ONLY
relu_accuracy_error_TESTING_ONLY non_leaf_compile_error_TESTING_ONLY""".split()


def test_every_backend_of_the_source_is_there() -> None:
    assert set(SOURCE_NAMES) <= set(backends.names())


@pytest.mark.parametrize("name", backends.names())
def test_record_is_complete(name: str) -> None:
    record = backends.describe(name)
    assert record.name == name
    assert record.proves.endswith(".")
    assert set(record.options) == set(accepted_options(record.function))
    assert all(record.options.values())
    assert record.function is backends.describe(f"graphprobe:{name}").function


def test_get_gives_the_same_object_again() -> None:
    assert backends.get("aot_eager") is backends.get("aot_eager")
    assert backends.get("aot_eager").__name__ == "aot_eager"


@pytest.mark.parametrize(("name", "nearest"), [("aot_egaer", "aot_eager"), ("graphprobe:egar", "eager")])
def test_unknown_name_gets_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(UsageError) as caught:
        backends.get(name)
    assert nearest in caught.value.hint


def test_unknown_option_of_get() -> None:
    with pytest.raises(UsageError, match="no option 'moed'") as caught:
        backends.get("aot_eager_decomp_partition_with_mode", moed=None)
    assert "mode" in caught.value.hint
    with pytest.raises(UsageError, match="no option"):
        backends.get("eager", verbose=True)


def test_missing_option_is_named() -> None:
    with pytest.raises(Exception, match="needs mode"):
        torch.compile(torch.sin, backend=backends.get("aot_eager_decomp_partition_with_mode"))(torch.ones(2))


def test_what_is_missing_is_told_by_the_name_that_was_typed_and_with_its_hint() -> None:
    with pytest.raises(Exception, match=r"backend faulty needs op, as in graphprobe.backends.get\('faulty', op=…\)"):
        torch.compile(torch.sin, backend="graphprobe:faulty")(torch.ones(2))
    with pytest.raises(UsageError) as unknown:
        backends.get("nonsense")
    assert "hint: there are eager, " in "".join(traceback.format_exception(unknown.value))


def test_unknown_options_of_torch_compile_are_named_in_a_warning() -> None:
    with pytest.warns(GraphprobeWarning, match="eager ignores colour='red'"):
        torch.compile(lambda x: x + 1, backend=backends.get("eager"), options={"colour": "red"})(torch.ones(2))
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", GraphprobeWarning)
        torch.compile(lambda x: x + 1, backend=backends.get("eager"))(torch.ones(2))


def test_names_do_not_clash_with_torch() -> None:
    theirs = torch.compiler.list_backends(exclude_tags=())
    assert resolve("aot_eager") is backends.get("aot_eager")
    assert "aot_eager" in theirs
    assert torch._dynamo.lookup_backend("aot_eager") is not backends.get("aot_eager")  # type: ignore[attr-defined]


def test_resolve() -> None:
    assert callable(resolve("inductor"))
    own: Callable[..., Any] = lambda gm, inputs: gm  # noqa: E731
    assert resolve(own) is own
    with pytest.raises(UsageError, match="no backend named"):
        resolve("nobody_has_this")
    with pytest.raises(UsageError, match="no backend named 3"):
        resolve(3)  # type: ignore[arg-type]


def test_ladder_is_the_records_order() -> None:
    walked = [rung.backend for rung in LADDER if not rung.side]
    assert walked == ["eager", "aot_eager", "aot_eager_decomp_partition", "inductor"]
    assert [LADDER[backends.describe(name).rung or 0].backend for name in walked] == walked
    assert [rung.backend for rung in LADDER if rung.side] == ["aot_eager_default_partitioner"]
    assert backends.describe("faulty").rung is None


def test_between() -> None:
    assert "Dynamo" in between(UNCOMPILED, "eager")
    assert "AOTAutograd" in between("eager", "aot_eager")
    assert "decomposition" in between("aot_eager", "aot_eager_decomp_partition")
    assert "kernel" in between("aot_eager_decomp_partition", "inductor")
    assert "min-cut" in between("aot_eager_default_partitioner", "aot_eager")
    assert "decompositions; Inductor" in between("aot_eager", "inductor")
    with pytest.raises(UsageError, match="not above"):
        between("inductor", "eager")
    with pytest.raises(UsageError, match="no rung"):
        between("eager", "ts")


def test_missing_private_name_is_named() -> None:
    with pytest.raises(UnsupportedTorchError, match=r"no torch\._dynamo\.nonsense"):
        require("torch._dynamo", "nonsense", purpose="this test")
    with pytest.raises(UnsupportedTorchError, match="cannot be imported"):
        require("torch._nothing", "x", purpose="this test")


def entry_points(root: Path) -> dict[str, str]:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, str] = project["entry-points"]["torch_dynamo_backends"]
    return found


def test_entry_points_are_the_registry(root: Path) -> None:
    assert entry_points(root) == {f"graphprobe:{name}": backends.describe(name).target for name in backends.names()}


def test_torch_finds_installed_names(root: Path, tmp_path: Path, run_python: Callable[..., Finished]) -> None:
    installed = tmp_path / "graphprobe_names-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: graphprobe-names\nVersion: 1\n")
    lines = [f"{name} = {target}" for name, target in entry_points(root).items()]
    (installed / "entry_points.txt").write_text("[torch_dynamo_backends]\n" + "\n".join(lines) + "\n")
    script = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
import torch
fn = lambda x: torch.relu(x).sum()
x = torch.tensor([-1.0, 2.0], requires_grad=True)
torch.compile(fn, backend="graphprobe:aot_eager")(x).backward()
assert x.grad.tolist() == [0.0, 1.0]
torch.compiler.reset()
wrong = torch.compile(fn, backend="graphprobe:faulty", options={{"op": "relu", "inner": "eager"}})(x)
assert wrong.item() == 4.0, wrong
assert "graphprobe:eager" in torch.compiler.list_backends(exclude_tags=())
print("fine")
"""
    done = run_python("-c", script)
    assert done.out.strip() == "fine", done.err


def test_importing_backends_imports_no_torch(run_python: Callable[..., Finished]) -> None:
    done = run_python("-c", "import sys, graphprobe.backends; print('torch' in sys.modules)")
    assert done.out.strip() == "False", done.err
