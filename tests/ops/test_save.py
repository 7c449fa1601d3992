"""`graphprobe.ops.save`: compiled code saves what eager code saves, and goes on as if nothing had happened."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import graphprobe
from conftest import ROOT
from graphprobe import ops
from graphprobe.errors import UsageError
from graphprobe.ops import destination, save
from graphprobe.probe.dump.sessions import close_all
from graphprobe.store import open_dump


def compiled_with(backend: str | None, function: Any, **options: Any) -> Any:
    return function if backend is None else torch.compile(function, backend=backend, fullgraph=True, **options)


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    save(x, "x")
    h = save(torch.relu(x @ w), "h")
    save(x.cos(), "unused")
    save(h, "again")
    return h.exp() * h


def run(function: Any, *args: torch.Tensor) -> list[torch.Tensor]:
    """The result and the gradients of the arguments."""
    leaves = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
    out = function(*leaves)
    if out.requires_grad:
        out.sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(3, 4, requires_grad=True)


@pytest.fixture
def w() -> torch.Tensor:
    return torch.randn(4, 4, requires_grad=True)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled_code_saves_what_eager_code_saves(saved: Any, x: Any, w: Any, backend: str) -> None:
    plain = run(program, x, w)
    found = run(compiled_with(backend, program, dynamic=True if backend == "inductor" else None), x, w)
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other)
    assert sorted(saved.names()) == sorted(2 * ["x", "h", "unused", "again", "h.grad"])
    for name in set(saved.names()):
        saved.assert_value(name, saved.value(name, 0), 1)
    records = [op.record for op in saved.ops()]
    assert [record.op.perturbs for record in records] == 5 * [False] + 5 * [True]
    assert {record.op.direction for record in records if record.op.op_name.endswith(".grad")} == {"backward"}
    assert {record.place.data_index for record in records} == {0, 1}


def test_the_gradient_is_what_flows_through_the_result(saved: Any) -> None:
    x = torch.ones(2, requires_grad=True)

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        h = save(y, "h")
        return (h * 3 + y).sum()  # the use of y passes the result by

    for backend in (None, "aot_eager"):
        compiled_with(backend, f)(x).backward()
    assert saved.value("h.grad", 0).tolist() == saved.value("h.grad", 1).tolist() == [3.0, 3.0]
    assert x.grad is not None and x.grad.tolist() == [16.0, 16.0]


@pytest.mark.slow
@pytest.mark.parametrize("backend", [None, "aot_eager", "inductor"])
def test_changes_in_place_come_after_the_value(saved: Any, x: Any, backend: str | None) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        row = save(y[0], "row")
        row.add_(5)  # of y as well
        save(y, "changed")
        return y.sin()

    expected = x.detach().clone()
    expected[0] += 5
    torch.testing.assert_close(run(compiled_with(backend, f), x)[0], expected.sin())
    saved.assert_value("row", x[0])
    saved.assert_value("changed", expected)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_in_a_branch(saved: Any, backend: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: save(x.sin(), "up") * 2, lambda x: save(x.cos(), "down") * 2, (x,))

    compiled = compiled_with(backend, f)
    compiled(torch.ones(2))
    assert saved.names() == ["up"]
    compiled(-torch.ones(2))
    assert saved.names() == ["up", "down"]
    saved.assert_value("down", torch.ones(2).cos())


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_modes(saved: Any, x: Any, w: Any, backend: str | None) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = save(x @ w, "half")
        with torch.no_grad():
            constant = save(x * 2, "no_grad")
        return half.float() + constant

    run(compiled_with(backend, f), x)
    assert saved.names() == ["half", "no_grad", "half.grad"]
    dtypes = [op.record.slots[0].meta.dtype for op in saved.ops()]
    assert dtypes == ["bfloat16", "float32", "bfloat16"]
    with torch.inference_mode():
        save(torch.ones(2), "inference")
    assert saved.names()[-1] == "inference"


def test_transforms(saved: Any, x: Any) -> None:
    x = x.detach()
    found = torch.vmap(lambda row: save(row.sin(), "rows") * 2)(x)
    torch.testing.assert_close(found, x.sin() * 2)
    saved.assert_value("rows", x.sin())
    found = torch.func.grad(lambda y: (save(y.sin(), "inner") * 2).sum())(x)
    torch.testing.assert_close(found, x.cos() * 2)
    saved.assert_value("inner.grad", torch.full((3, 4), 2.0))
    columns = torch.vmap(torch.func.grad(lambda column: save(column, "c").sin().sum()), in_dims=1, out_dims=1)(x)
    torch.testing.assert_close(columns, x.cos())
    saved.assert_value("c.grad", x.cos().T)


def test_second_derivatives(saved: Any) -> None:
    x = torch.tensor([0.3], requires_grad=True)
    (first,) = torch.autograd.grad(save(x, "x").sin().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, -x.detach().sin())


VALUES = [
    torch.tensor(2.5),
    torch.empty(0, 3),
    torch.tensor([True, False]),
    torch.tensor([1 + 2j]),
    torch.arange(6).reshape(2, 3).T,
    torch.tensor([1.0, -2.0], dtype=torch.float64).to(torch.bfloat16),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: f"{v.dtype}{tuple(v.shape)}")
def test_every_kind_of_value(saved: Any, value: torch.Tensor) -> None:
    assert save(value, "v") is value
    (op,) = saved.ops()
    assert op.record.op.source.rpartition(":")[0].endswith("tests/ops/test_save.py")
    meta = op.record.slots[0].meta
    assert (f"torch.{meta.dtype}", meta.shape, meta.strides) == (str(value.dtype), value.shape, value.stride())
    stored = torch.from_numpy(op.values()["output.0"].array())
    assert torch.equal(stored.to(value.dtype), value)


def test_wrong_arguments(fresh: Any) -> None:
    with pytest.raises(UsageError, match="takes a tensor, not list"):
        save([torch.ones(1)], "x")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the name is ''"):
        save(torch.ones(1), "")
    with pytest.raises(UsageError, match="the name is 3"):
        graphprobe.ops.print(torch.ones(1), 3)  # type: ignore[arg-type]
    assert list(fresh.iterdir()) == []


@pytest.mark.cuda
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_on_a_device(saved: Any, mode: str) -> None:
    x = torch.randn(64, 64, device="cuda", requires_grad=True)

    def f(x: torch.Tensor) -> torch.Tensor:
        h = save(torch.relu(x @ x), "h")
        graphprobe.ops.print(h, "h")
        return h.sin()

    compiled = torch.compile(f, fullgraph=True, mode=mode)
    for step in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        compiled(x).sum().backward()
        saved.assert_value("h", torch.relu(x @ x).cpu(), step, rtol=1e-2, atol=1e-2)
    assert saved.names() == 3 * ["h", "h.grad"]
    assert not saved.folder.manifest.missing


def test_a_tensor_of_a_class_that_knows_nothing_of_the_op(saved: Any) -> None:
    class Refusing(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace == "graphprobe":
                raise NotImplementedError("planted")
            return super().__torch_dispatch__(func, types, args, kwargs or {})

    odd = torch.ones(2).as_subclass(Refusing)
    with pytest.raises(NotImplementedError):
        torch.ops.graphprobe.save(odd, "direct", False, False)
    assert save(odd, "odd") is odd
    saved.assert_value("odd", torch.ones(2))
    with torch._subclasses.FakeTensorMode():
        save(torch.ones(2), "fake")
    save(torch.ones(2, device="meta"), "meta")
    assert saved.names() == ["odd"], "what has no values is not saved"


PAGE = ROOT / "docs" / "save_and_print.md"


def test_the_program_prints_what_the_page_shows(
    fresh: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    (output,) = re.findall(r"```text\n(.*?)```", text, flags=re.S)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(program, str(PAGE), "exec"), names)
    assert capsys.readouterr().out == output
    folder = ops.flush()
    assert folder is not None and folder.is_relative_to(fresh / "graphprobe-saved")
    assert [op.record.op.op_name for op in open_dump(folder).ops()] == ["h", "h.grad"]


ONES = torch.ones(2)


def names(path: Path | None) -> list[str]:
    ops.flush()
    assert path is not None
    return [op.record.op.op_name for op in open_dump(path).ops()]


@pytest.mark.parametrize("asked", [None, "deep/there"])
def test_a_folder_in_the_working_directory_or_from_the_environment(
    asked: str | None, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if asked:
        monkeypatch.setenv("GRAPHPROBE_SAVED", str(fresh / asked))
    assert ops.flush() is None
    assert list(fresh.iterdir()) == []
    ops.save(ONES, "a")
    ops.save(ONES, "a")
    folder = ops.flush()
    assert folder is not None and folder.is_relative_to(fresh / (asked or "graphprobe-saved"))
    assert names(folder) == ["a", "a"]


@pytest.mark.parametrize("how", ["call", "environment"])
def test_off_takes_the_ops_out_of_compiled_code(fresh: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    graphs: list[str] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(gm.code)
        return gm

    compiled = torch.compile(lambda x: ops.save(x * 2, "a") + 1, backend=backend, fullgraph=True)
    if how == "call":
        ops.save_to(fresh / "values")
    else:
        monkeypatch.setenv("GRAPHPROBE_SAVED", "off")
    compiled(ONES)
    if how == "call":
        ops.save_to(None)
    assert ops.save(ONES, "a") is ONES
    assert compiled(ONES).tolist() == [3.0, 3.0]
    assert ["graphprobe.save" in code for code in graphs] == [True, False]
    if how == "environment":
        assert list(fresh.iterdir()) == []
        return
    assert names(fresh / "values") == ["a"]
    ops.save_to(fresh / "more")
    compiled(ONES)
    assert names(fresh / "more") == ["a"]


def test_an_open_dump_has_them(fresh: Path) -> None:
    config = graphprobe.CompilerConfig()
    config.dump_config.enable_dump = True
    (fresh / "dump").mkdir()
    config.dump_config.dump_path = str(fresh / "dump")
    config.dump_config.dump_data = "stats"
    try:
        backend = graphprobe.get_backend(compiler_config=config, backend="aot_eager")
        torch.compile(lambda x: ops.save(x.sin(), "mine") * 2, backend=backend)(ONES)
        assert "mine" in names(fresh / "dump")
        assert not (fresh / "graphprobe-saved").exists()
    finally:
        close_all()
        graphprobe.disable()
    ops.save(ONES, "after")
    assert names(fresh / "graphprobe-saved") == ["after"]


def test_no_folder_can_be_made(fresh: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    (fresh / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be saved under"):
        ops.save_to(fresh / "file" / "in")
    monkeypatch.setenv("GRAPHPROBE_SAVED", str(fresh / "file"))
    compiled = torch.compile(lambda x: ops.save(x.sin(), "a") * 2, backend="aot_eager", fullgraph=True)
    for _ in range(3):
        assert torch.equal(compiled(ONES), ONES.sin() * 2)
    assert caplog.text.count("graphprobe.ops: saving 'a' failed") == 1


def test_a_writer_that_fails_is_reported_and_the_program_goes_on(
    saved: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops.save(ONES, "good")
    monkeypatch.setattr(destination, "dump_value", lambda *a, **k: 1 / 0)
    x = ONES.clone().requires_grad_()
    (ops.save(x.sin(), "bad") * 2).sum().backward()
    torch.testing.assert_close(x.grad, ONES.cos() * 2)
    assert "division by zero" in caplog.text
    assert saved.names() == ["good"]
    assert any("division by zero" in line for line in saved.folder.manifest.missing)


def test_a_forked_child_has_a_folder_of_its_own(saved: Any) -> None:
    ops.save(ONES, "parent")
    ops.flush()
    pid = os.fork()
    if pid == 0:
        try:
            ops.save(ONES, "child")
            ops.flush()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    found = {tuple(op.record.op.op_name for op in folder.ops()) for folder in open_dump(saved.path).folders}
    assert found == {("parent",), ("child",)}
