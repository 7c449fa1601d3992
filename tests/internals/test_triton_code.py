"""Triton code without a GPU: what Inductor generates, its way to PTX, and the launch tap on recorded calls."""

import ast
import importlib.util
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor.graph import GraphLowering

from graphprobe.internals.launch_io import declarations, kernel_source, launch_ios, signatures
from graphprobe.internals.launches import LaunchTap

NO_TRITON = (
    "triton is not installed: torch's wheel for the CPU has none, and Inductor's generator of Triton code imports it"
)


def pointwise(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x).sin() * 2


def reduced(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def triton_code(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> str:
    """The wrapper module that Inductor generates with Triton kernels, as text; nothing of it is loaded."""
    pytest.importorskip("triton", reason=NO_TRITON)
    texts: list[str] = []
    generate: Any = GraphLowering.codegen

    def kept(self: Any) -> Any:
        code = generate(self)
        texts.append(code[0].value)
        raise InterruptedError("the text is all that is wanted")

    monkeypatch.setattr(GraphLowering, "codegen", kept)
    torch.compiler.reset()
    settings = {"cpu_backend": "triton", "force_disable_caches": True}
    with torch._inductor.config.patch(settings), pytest.raises(Exception, match="all that is wanted"):
        torch.compile(function)(torch.ones(16, 24))
    (text,) = texts
    return text


@pytest.fixture(params=["pointwise", "reduced"])
def code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return triton_code(globals()[request.param], monkeypatch)


def test_what_is_generated_says_what_it_reads_and_writes(code: str) -> None:
    kernels = signatures(code)
    assert kernels and set(kernels) == set(declarations(code))
    launches = [io for io in launch_ios(code).values() if io.kind == "kernel"]
    assert {io.name for io in launches} == set(kernels)
    for io in launches:
        text = (kernel_source(code, io.name) or ("", ""))[1]
        (function,) = (n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef))
        loads = set(re.findall(r"tl\.load\((\w+)", text))
        stores = set(re.findall(r"tl\.store\((\w+_ptr\d+)", text))
        assert function.name == io.name
        assert {p.name for p in kernels[io.name] if p.writes} == stores
        assert {p.name for p in kernels[io.name] if p.reads} >= loads & {p.name for p in kernels[io.name]}
    read = {use.name for io in launches for use in io.reads}
    written = {use.name for io in launches for use in io.writes}
    assert "arg0_1" in read and "arg0_1" not in written
    assert any(buffer.startswith("buf") for buffer in written)


def test_what_is_generated_compiles_to_ptx(code: str, tmp_path: Path) -> None:
    """For a GPU of compute capability 9.0, without one."""
    triton = pytest.importorskip("triton", reason=NO_TRITON)
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    for kernel, parameters in signatures(code).items():
        text = (kernel_source(code, kernel) or ("", ""))[1]
        function = jitted(text, kernel, tmp_path)
        blocks = {n: 16 for n in function.arg_names if n.endswith("BLOCK")}
        assert parameters
        signature = types_of(text) | dict.fromkeys(blocks, "constexpr")
        made = triton.compile(ASTSource(function, signature, constexprs=blocks), target=GPUTarget("cuda", 90, 32))
        assert re.search(rf"\.entry {kernel}\b", made.asm["ptx"])


def jitted(text: str, name: str, folder: Path) -> Any:
    """The kernel without the heuristics around it, which ask the device."""
    module = ast.parse(text)
    (function,) = (n for n in module.body if isinstance(n, ast.FunctionDef))
    function.decorator_list = [d for d in function.decorator_list if ast.unparse(d) == "triton.jit"]
    module.body = [n for n in module.body if isinstance(n, ast.Import | ast.ImportFrom | ast.FunctionDef)]
    path = folder / f"{name}.py"
    path.write_text(ast.unparse(module), "utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return getattr(loaded, name)


def types_of(text: str) -> dict[str, str]:
    """The signature in the kernel's metadata."""
    for node in ast.walk(ast.parse(text)):
        for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
            if isinstance(key, ast.Constant) and key.value == "signature":
                return dict(ast.literal_eval(value))
    raise AssertionError("the kernel has no signature")


RECORDED = '''
triton_poi_fused_relu_0 = async_compile.triton('triton_poi_fused_relu_0', """
@triton_heuristics.pointwise(
    size_hints={'x': 256},
    triton_meta={'signature': {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}},
    inductor_meta={'kernel_name': 'triton_poi_fused_relu_0', 'mutated_arg_names': []},
)
@triton.jit
def triton_poi_fused_relu_0(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    pass
""", device_str='cuda')

def call(args):
    arg0_1, arg1_1 = args
    args.clear()
    buf0 = empty_strided((4, 8), (8, 1))
    stream0 = get_raw_stream(0)
    triton_poi_fused_relu_0.run(arg0_1, buf0, 32, stream=stream0)
    buf1 = empty_strided((4, 4), (4, 1))
    extern_kernels.mm(buf0, arg1_1, out=buf1)
    return (buf1, )
'''
"""A wrapper for a GPU, as Inductor writes it; the calls below are made on the CPU."""


class Kernel:
    """Stands for a compiled Triton kernel: keeps what each call gave it, and computes it."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.n_regs = 14

    def run(self, *args: Any, **kwargs: Any) -> None:
        self.calls.append((args, kwargs))
        args[1].copy_(args[0].relu())


def wrapper() -> tuple[types.ModuleType, Kernel]:
    kernel, module = Kernel(), types.ModuleType("recorded")
    vars(module).update(
        triton_poi_fused_relu_0=kernel,
        extern_kernels=types.SimpleNamespace(mm=torch.mm),
        empty_strided=torch.empty_strided,
        get_raw_stream=lambda index: 7000 + index,
    )
    body = RECORDED.index("def call")
    exec(compile("\n" * RECORDED[:body].count("\n") + RECORDED[body:], "recorded.py", "exec"), vars(module))
    return module, kernel


def line_of(text: str) -> int:
    return next(i for i, line in enumerate(RECORDED.splitlines(), 1) if text in line)


def test_the_tap_tells_a_launch_as_it_was_made() -> None:
    module, kernel = wrapper()
    x, w = torch.linspace(-1, 1, 32).reshape(4, 8), torch.ones(8, 4)
    tap = LaunchTap(module, RECORDED)
    with tap.recording():
        assert module.triton_poi_fused_relu_0.n_regs == 14
        (result,) = module.call([x, w])
    assert torch.equal(result, x.relu() @ w)
    ((args, kwargs),) = kernel.calls
    assert args[0] is x and args[2] == 32 and kwargs == {"stream": 7000}
    first, second = tap.launches
    assert (first.name, first.kind) == ("triton_poi_fused_relu_0", "kernel")
    assert first.line == line_of("triton_poi_fused_relu_0.run(")
    assert first.arguments == ("float32[4, 8]", "float32[4, 8]", "32", "stream=7000")
    assert tap.buffers(first) == ("arg0_1", "buf0", "stream0")
    assert (second.name, second.arguments) == (
        "extern_kernels.mm",
        ("float32[4, 8]", "float32[8, 4]", "out=float32[4, 4]"),
    )
    assert not first.capturing and first.start_ns <= second.start_ns
    assert module.triton_poi_fused_relu_0 is kernel


def test_the_tap_says_whether_a_cuda_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    captured = iter([True, False])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: next(captured))
    module, _ = wrapper()
    tap = LaunchTap(module, RECORDED)
    with tap.recording():
        module.call([torch.ones(4, 8), torch.ones(8, 4)])
    assert [launch.capturing for launch in tap.launches] == [True, False]


@pytest.mark.cuda
def test_a_launch_on_a_gpu_is_told_like_a_recorded_one() -> None:
    from graphprobe.internals.inductor.lowered_graph import watched_lowering

    torch.compiler.reset()
    with torch.compiler.config.patch(force_disable_caches=True), watched_lowering() as graphs:
        compiled = torch.compile(pointwise)
        x = torch.randn(16, 24, device="cuda")
        compiled(x)
        tap = LaunchTap(graphs[0].module, graphs[0].code)
        with tap.recording():
            assert torch.allclose(compiled(x), pointwise(x))
    (launch,) = tap.launches
    assert launch.name.startswith("triton_") and launch.kind == "kernel"
    assert launch.arguments[:2] == ("float32[16, 24]", "float32[16, 24]")
