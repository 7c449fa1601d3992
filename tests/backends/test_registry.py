"""Names, options and entry points of the debug backends, and the ladder."""

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


def test_every_backend_of_the_source_is_there_and_described() -> None:
    assert set(SOURCE_NAMES) <= set(backends.names())
    for name in backends.names():
        record = backends.describe(name)
        assert record.name == name and record.proves.endswith(".")
        assert set(record.options) == set(accepted_options(record.function)) and all(record.options.values())
        assert record.function is backends.describe(f"graphprobe:{name}").function


def test_get_gives_the_same_object_again() -> None:
    assert backends.get("aot_eager") is backends.get("aot_eager")
    assert backends.get("aot_eager").__name__ == "aot_eager"
    configured = "aot_eager_decomp_partition_with_mode"
    assert repr(backends.get(configured, mode=None)) == f"graphprobe.backends.get({configured!r}, mode=None)"


def test_a_name_or_an_option_that_is_unknown_or_missing() -> None:
    with_mode = "aot_eager_decomp_partition_with_mode"
    for name, options, said, hint in (
        ("aot_egaer", {}, "no backend named", "aot_eager"),
        ("graphprobe:egar", {}, "no backend named", "eager"),
        ("nonsense", {}, "no backend named", "there are eager, "),
        (with_mode, {"moed": None}, "no option 'moed'", "mode"),
        ("eager", {"verbose": True}, "no option", ""),
    ):
        with pytest.raises(UsageError, match=said) as caught:
            backends.get(name, **options)
        assert f"hint: {caught.value.hint}" in "".join(traceback.format_exception(caught.value))
        assert hint in caught.value.hint
    with pytest.raises(Exception, match="needs mode"):
        torch.compile(torch.sin, backend=backends.get(with_mode))(torch.ones(2))
    with pytest.raises(Exception, match=r"backend faulty needs op, as in graphprobe.backends.get\('faulty', op=…\)"):
        torch.compile(torch.sin, backend="graphprobe:faulty")(torch.ones(2))


def test_unknown_options_of_torch_compile_are_named_in_a_warning() -> None:
    with pytest.warns(GraphprobeWarning, match="eager ignores colour='red'"):
        torch.compile(lambda x: x + 1, backend=backends.get("eager"), options={"colour": "red"})(torch.ones(2))
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", GraphprobeWarning)
        torch.compile(lambda x: x + 1, backend=backends.get("eager"))(torch.ones(2))


def test_resolve() -> None:
    assert resolve("aot_eager") is backends.get("aot_eager"), "and not torch's of this name"
    assert "aot_eager" in torch.compiler.list_backends(exclude_tags=())
    assert torch._dynamo.lookup_backend("aot_eager") is not backends.get("aot_eager")  # type: ignore[attr-defined]
    assert callable(resolve("inductor"))
    own: Callable[..., Any] = lambda gm, inputs: gm  # noqa: E731
    assert resolve(own) is own
    for wrong in ("nobody_has_this", 3):
        with pytest.raises(UsageError, match=f"no backend named .?{wrong}"):
            resolve(wrong)  # type: ignore[arg-type]


def test_ladder_is_the_records_order() -> None:
    walked = [rung.backend for rung in LADDER if not rung.side]
    assert walked == ["eager", "aot_eager", "aot_eager_decomp_partition", "inductor"]
    assert [LADDER[backends.describe(name).rung or 0].backend for name in walked] == walked
    assert [rung.backend for rung in LADDER if rung.side] == ["aot_eager_default_partitioner"]
    assert backends.describe("faulty").rung is None


def test_between() -> None:
    decomposed, default = "aot_eager_decomp_partition", "aot_eager_default_partitioner"
    for upper, lower, said in (
        (UNCOMPILED, "eager", "Dynamo"),
        ("eager", "aot_eager", "AOTAutograd"),
        ("aot_eager", decomposed, "decomposition"),
        (decomposed, "inductor", "kernel"),
        (default, "aot_eager", "min-cut"),
        ("aot_eager", "inductor", "decompositions; Inductor"),
    ):
        assert said in between(upper, lower)
    for upper, lower, said in (("inductor", "eager", "not above"), ("eager", "ts", "no rung")):
        with pytest.raises(UsageError, match=said):
            between(upper, lower)


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


@pytest.mark.slow
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
