"""Programs, and a compile of them that writes every stage's script with the real inputs and outputs beside it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import onnx
import torch
from functorch.compile import make_boxed_func
from google.protobuf import text_format
from torch import fx
from torch._inductor import compile_fx, debug
from torch._inductor.virtualized import V

from graphprobe.engine.values import capture, capture_after, to_bytes
from graphprobe.internals.ir import scheduler_nodes as inductor_ir
from graphprobe.internals.ir.records import IRGraph
from graphprobe.probe.formats import Script
from graphprobe.probe.formats.fx_py import fx_py_source
from graphprobe.probe.formats.ir_py import ir_py_source
from graphprobe.probe.views import output_code_source

Program = tuple[Callable[..., Any], tuple[Any, ...]]


def mlp() -> Program:
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    return net, (torch.randn(3, 8, requires_grad=True),)


def transformer_dropout() -> Program:
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.2, batch_first=True)

    def f(x: torch.Tensor) -> torch.Tensor:
        return layer(x).tanh() * 2

    return f, (torch.randn(2, 6, 16, requires_grad=True),)


def attention_dropout() -> Program:
    project = torch.nn.Linear(16, 48)

    def f(x: torch.Tensor) -> torch.Tensor:
        q, k, v = project(x).chunk(3, dim=-1)
        weights = torch.nn.functional.dropout((q @ k.mT / 4).softmax(-1), 0.2)
        return (x + weights @ v).tanh() * 2

    return f, (torch.randn(2, 12, 16, requires_grad=True),)


def conv_batch_norm() -> Program:
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU())
    return net, (torch.randn(2, 3, 10, 10, requires_grad=True),)


def mutation_and_alias() -> Program:
    def f(x: torch.Tensor, index: torch.Tensor, buffer: torch.Tensor, part: torch.Tensor) -> Any:
        buffer.index_put_((index,), x, accumulate=True)
        part.mul_(3)
        return buffer[:5] + x, part.sum()

    base = torch.randn(8, 4)
    other = torch.randn(40)
    return f, (torch.randn(5, 4), torch.tensor([0, 1, 2, 2, 1]), base, other.as_strided((3, 5), (7, 2), 3))


def cond_constants() -> Program:
    constant = torch.randn(2, 20)

    def f(x: torch.Tensor) -> Any:
        y = x + torch.tensor([1.0, 2.0, 3.0, 4.0]) * constant.sum()
        return torch.cond(x.sum() > 0, lambda a: (a + 1).sin(), lambda a: a.cos() * constant[0, 0], (y,)), x[:, :2]

    return f, (torch.randn(3, 4, requires_grad=True),)


def bfloat16_autocast() -> Program:
    linear = torch.nn.Linear(8, 8)

    def f(x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = linear(x)
        with torch.no_grad():
            scale = y.float().abs().amax().clamp(max=float("inf"))
        return y.softmax(-1) / scale, y.to(torch.float8_e4m3fn)

    return f, (torch.randn(4, 8, requires_grad=True),)


PROGRAMS = {
    **{f.__name__: f for f in (mlp, transformer_dropout, attention_dropout, conv_batch_norm)},
    **{f.__name__: f for f in (mutation_and_alias, cond_constants, bfloat16_autocast)},
}


class Stages:
    """Compiles with Inductor and keeps, per graph, a folder with `output_code.py` and the scripts of the others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.graphs: list[fx.GraphModule] = []
        self.irs: list[tuple[str, IRGraph]] = []
        self._now: dict[str, Any] = {}

    def write(self, place: Path, stem: str, script: Script) -> None:
        assert script.problems == ()
        (place / f"{stem}.py").write_text(script.source)
        if script.constants is not None:
            (place / script.constants_name.format(stem=stem)).write_bytes(script.constants)

    def dynamo(self, gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        return self._graph(gm, "dynamo", eager=True)

    def aot(self, gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        return make_boxed_func(self._graph(gm, f"aot{len(self.graphs)}"))

    def _graph(self, gm: fx.GraphModule, name: str, **options: bool) -> Callable[..., Any]:
        place = self.folder / name
        place.mkdir()
        self.graphs.append(gm)
        self.write(place, "graph", fx_py_source(gm, title=name, **options))
        return self.saving(place, lambda args: fx.Interpreter(gm).run(*args), (), boxed=False)

    def saving(self, place: Path, run: Callable[..., Any], donated: tuple[int, ...], boxed: bool) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            given = list(args[0] if boxed else args)
            before = capture(given)
            result = run(args[0] if boxed else list(args))
            after = capture_after(before, result, given, donated=donated)
            for name, captured in (("inputs", before), ("outputs", after)):
                data, records = to_bytes(captured)
                (place / f"{name}.safetensors").write_bytes(data)
                (place / f"{name}.json").write_bytes(records)
            return result

        return call

    def inner(self, gm: fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
        self._now = {"inputs": inputs, "kwargs": kwargs}
        output = compile_fx.compile_fx_inner(gm, inputs, **kwargs)
        if "original" not in self._now:
            return output
        name = "backward" if kwargs.get("is_backward") else "forward"
        place = self.folder / name
        place.mkdir()
        script = output_code_source(output.source_code, constants=output.constants, inputs=inputs)
        self.write(place, "output_code", script)
        for stage in ("original", "optimized"):
            self.write(place, stage, self._now[stage])
        output.current_callable = self.saving(place, output.current_callable, self._now["donated"], boxed=True)
        return output

    def backend(self, gm: fx.GraphModule, inputs: Any) -> Any:
        return compile_fx.compile_fx(gm, inputs, inner_compile=self.inner)

    @contextmanager
    def tapped(self) -> Iterator[None]:
        """Scheduler nodes are read and scripts made where torch reports them."""

        def tap(stage: Any, report: Any) -> Any:
            def told(nodes: Any) -> None:
                ir = inductor_ir.ir_graph(nodes)
                self.irs.append((stage, ir))
                if not ir.name:
                    self._now["donated"] = inductor_ir.donated_inputs()
                    self._now[stage] = ir_py_source(
                        V.graph.orig_gm,
                        ir,
                        title="lowered",
                        stage=stage,
                        options=self._now["kwargs"],
                        donated_idxs=self._now["donated"],
                        inputs=self._now["inputs"],
                    )
                report(nodes)

            return told

        with (
            mock.patch.object(debug, "log_ir_pre_fusion", tap("original", debug.log_ir_pre_fusion)),
            mock.patch.object(debug, "log_ir_post_fusion", tap("optimized", debug.log_ir_post_fusion)),
            torch._inductor.config.patch(fx_graph_cache=False),
            torch._functorch.config.patch(enable_autograd_cache=False),
        ):
            yield


def parse_onnx(text: str) -> onnx.ModelProto:
    model = text_format.Parse(text, onnx.ModelProto())
    onnx.checker.check_model(model)
    return model


def train(program: Callable[[], Program], backend: Any, *, dynamic: bool = False) -> None:
    torch._dynamo.reset()
    torch.manual_seed(1)
    torch.set_num_threads(2)
    function, args = program()
    result = torch.compile(function, backend=backend, dynamic=dynamic)(*args)
    result = result[0] if isinstance(result, tuple) else result
    if result.requires_grad:
        result.float().pow(2).sum().backward()
