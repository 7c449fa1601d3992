"""What launches read and write: held against the memory that they change and need, and read from known module texts."""

import functools
import operator
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from graphprobe.errors import UnsupportedTorchError
from graphprobe.internals.inductor import lowered_graph as lowering
from graphprobe.internals.inductor.lowered_graph import LoweredGraph, watched, watched_lowering
from graphprobe.internals.launch_io import LaunchIO, Use, kernel_source, launch_ios
from graphprobe.internals.launches import Launching, LaunchTap

ATTENTION = torch.nn.functional.scaled_dot_product_attention


def encoder(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y = torch.nn.functional.layer_norm(x @ w + b, (16,)).view(2, 5, 2, 8).transpose(1, 2)
    return ATTENTION(y, y, y).relu() * 2


def several(x: torch.Tensor, y: torch.Tensor) -> Any:
    values, order = torch.sort(x, -1)
    top, _ = torch.topk(x * 2, 3)
    joined = torch.cat([x.sin(), y.cos(), x + y], 0)
    y[1:3] = x[1:3].relu()
    x.add_(1)
    return values + 1, order, top.relu(), joined.softmax(-1), joined.cumsum(0), (x * y).sum(0), torch.arange(5) * 2


def chained(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = torch.mm(x, w).sin().softmax(-1)
    return x


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


CASES: dict[str, tuple[Callable[..., Any], list[torch.Tensor], bool, bool | None]] = {
    "encoder": (encoder, [draw(2, 5, 16), draw(16, 16), draw(16)], True, None),
    "several": (several, [draw(4, 8), draw(4, 8) * 2], False, None),
    "chained": (chained, [draw(8, 8), draw(8, 8)], False, True),
}


def compiled(name: str) -> tuple[list[LoweredGraph], Callable[[], list[torch.Tensor]]]:
    """The graphs of a case, compiled, and a call of it that returns what it gives: outputs, inputs and gradients."""
    function, arguments, grad, dynamic = CASES[name]
    torch._dynamo.reset()
    made = torch.compile(function, dynamic=dynamic)

    def call() -> list[torch.Tensor]:
        given = [t.clone().requires_grad_(grad) for t in arguments]
        out = made(*given)
        results = [out] if isinstance(out, torch.Tensor) else list(out)
        if grad:
            results[0].sum().backward()
        return [t.detach() for t in [*results, *given, *(t.grad for t in given if t.grad is not None)]]

    with torch.compiler.config.patch(force_disable_caches=True), watched_lowering() as found:
        call()
    return found, call


def changes(launching: Launching) -> tuple[Any, set[int]]:
    """What the launch gives, and the addresses of the arguments whose memory it changed."""
    tensors = [a for a in launching.args if isinstance(a, torch.Tensor)]
    before = [a.clone() for a in tensors]
    result = launching.run()
    pairs = zip(tensors, before, strict=True)
    return result, {a.data_ptr() for a, b in pairs if not torch.equal(a.nan_to_num(), b.nan_to_num())}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_memory_agrees(name: str) -> None:
    graphs, call = compiled(name)
    assert len(graphs) == (2 if CASES[name][2] else 1)
    expected = call()
    seen: list[str] = []

    def watching(ios: dict[int, LaunchIO]) -> Callable[[Launching], Any]:
        def around(launching: Launching) -> Any:
            io, variables = ios[launching.line], launching.variables()
            assert (io.name, io.kind) == (launching.name, launching.kind)
            for use in (*io.reads, *io.writes):
                if isinstance(use.position, int) and not use.path and not use.view:
                    assert variables[use.name] is launching.args[use.position]
            taken = {u.position for u in io.reads}
            read = {variables[u.name].data_ptr() for u in io.reads}
            before = [use for use in io.writes if use.result is None]
            for use in before:  # what is written and not read may hold anything before
                value = variables[use.name]
                if use.position not in taken and value.dtype == torch.float32 and value.data_ptr() not in read:
                    value.fill_(torch.nan)
            result, changed = changes(launching)
            assert changed <= {variables[use.name].data_ptr() for use in before}
            for use in io.writes:
                if use.result:
                    assert isinstance(functools.reduce(operator.getitem, use.result, result), torch.Tensor)
            seen.append(launching.name)
            return result

        return around

    taps = []
    for graph in graphs:
        ios = launch_ios(graph.code, graph.nodes)
        owned = [node for io in ios.values() for node in io.nodes]
        assert sorted(owned) == sorted(node.name for node in graph.nodes)
        taps.append(LaunchTap(graph.module, graph.code, around=watching(ios)))
    with taps[0].recording(), taps[-1].recording():
        got = call()
    assert len(seen) >= 4
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    if name == "chained":
        follow_through_reused_memory(graphs[0])


def follow_through_reused_memory(graph: LoweredGraph) -> None:
    """Every value read was written by a launch before."""
    written: set[str | None] = set()
    inside = 0
    for io in launch_ios(graph.code, graph.nodes).values():
        read = {u.value for u in io.reads if str(u.value).startswith("buf")}
        assert read <= written
        written |= {u.value for u in io.writes}
        inside += len(read)
    assert inside >= 4 and written <= {out.name for node in graph.nodes for out in node.outputs}


TRITON = '''
triton_poi_0 = async_compile.triton('triton_poi_0', """
import triton
@triton_heuristics.pointwise(
    size_hints={'x': 32},
    triton_meta={'signature': {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'out_ptr1': '*fp32', 'in_ptr1': '*fp32',
        'xnumel': 'i32', 'XBLOCK': 'constexpr'}, 'constants': {}},
    inductor_meta={'kernel_name': 'triton_poi_0', 'mutated_arg_names': ['in_out_ptr0', 'in_ptr1']},
)
@triton.jit
def triton_poi_0(in_out_ptr0, in_ptr0, out_ptr1, in_ptr1, xnumel, XBLOCK : tl.constexpr):
    pass
""", device_str='cuda')
'''

CPP = """
cpp_0 = async_compile.cpp_pybinding(['float*', 'const float*', 'float*', 'const int64_t'], r'''
static inline void kernel_helper(int a) {}
extern "C"  void  kernel(float* in_out_ptr0, const float* in_ptr0,
                       float* out_ptr0, const int64_t ks0)
{}
''')
"""


def names(uses: tuple[Use, ...]) -> dict[str, int | str | None]:
    return {use.name: use.position for use in uses}


def only(code: str) -> LaunchIO:
    (io,) = launch_ios(code).values()
    return io


def test_kernels() -> None:
    io = only(TRITON + "def call(args):\n    triton_poi_0.run(buf1, arg0_1, buf2, arg1_1, 32, stream=stream0)\n")
    assert (io.name, io.kind) == ("triton_poi_0", "kernel")
    assert names(io.reads) == {"buf1": 0, "arg0_1": 1, "arg1_1": 3}
    assert names(io.writes) == {"buf1": 0, "buf2": 2, "arg1_1": 3}
    io = only(CPP + "def call(args):\n    cpp_0(buf1, arg0_1, buf2, s33)\n")  # s33 is a size
    assert (names(io.reads), names(io.writes)) == ({"buf1": 0, "arg0_1": 1}, {"buf1": 0, "buf2": 2})


def test_library_call() -> None:
    io = only("def call(args):\n    extern_kernels.mm(buf0, reinterpret_tensor(buf1, (8, s3), (1, 8), 0), out=buf2)\n")
    assert (io.kind, io.name) == ("extern", "extern_kernels.mm")
    assert io.reads == (Use("buf0", 0, value="buf0"), Use("buf1", 1, view=True, value="buf1"))
    assert io.writes == (Use("buf2", "out", value="buf2"),)


def test_operator_that_writes_to_its_argument() -> None:
    io = only("def call(args):\n    torch.ops.aten.index_put_.default(buf0, [None, buf1], buf2, False)\n")
    assert names(io.writes) == {"buf0": 0}
    assert {(u.name, u.position, u.path) for u in io.reads} == {("buf0", 0, ()), ("buf1", 1, (1,)), ("buf2", 2, ())}


def test_several_results_and_reuse_which_is_no_launch() -> None:
    lines = ["buf0 = torch.ops.aten.topk.default(arg0_1, 3)", "buf1 = buf0[0]", "buf2 = buf0[1]", "del buf0"]
    io = only("def call(args):\n    " + "\n    ".join(lines))
    assert [(u.name, u.result) for u in io.writes] == [("buf1", (0,)), ("buf2", (1,))]
    io = only("def call(args):\n    buf0 = extern_kernels.convolution(x, w)\n    buf3 = buf0; del buf0  # reuse\n")
    assert [(u.name, u.result) for u in io.writes] == [("buf0", ())]


def test_source_of_a_kernel() -> None:
    suffix, text = kernel_source(CPP, "cpp_0") or ("", "")
    assert suffix == ".cpp" and text.startswith("static inline") and text.endswith("{}\n")
    suffix, text = kernel_source(TRITON, "triton_poi_0") or ("", "")
    assert suffix == ".py" and "def triton_poi_0(" in text
    assert kernel_source(CPP, "cpp_1") is None


def program(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    z = x.clone()
    z.index_put_((i,), v, accumulate=True)
    z.index_put_((i,), v, accumulate=True)
    return z


def lowered() -> None:
    torch.compiler.reset()
    with torch.compiler.config.patch(force_disable_caches=True):
        torch.compile(program)(torch.randn(4, 4), torch.tensor([1, 2]), torch.randn(2, 4))


def test_a_buffer_that_others_change_holds_its_value_last() -> None:
    told: list[Any] = []
    with watched() as found, watched(all_threads=True, done=lambda *what: told.append(what)) as everywhere:
        lowered()
    (part,) = found.parts
    changed = {name for buffer in part.buffers for name in buffer.mutates}
    changing = [buffer.name for buffer in part.buffers if buffer.mutates]
    values = {name: node.name for name, node in part.values.items()}
    assert len(changing) == 2 and len(changed) == 1
    assert values == {changing[-1]: "index_put_1"}
    assert {node.name for node in part.fx} >= {"index_put", "index_put_1"}
    (other,) = everywhere.parts
    assert other.handler is part.handler
    ((_, module, code),) = told
    assert found.modules == {id(part.handler): (module, code)} and "def call" in code


def test_threads_and_nesting(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one thread the inner block sees it; another thread's is seen by those who look at all."""
    import torch._inductor.debug as debug

    monkeypatch.setattr(debug, "log_ir_post_fusion", lambda nodes: None)  # torch's own needs a compile
    plain = debug.log_ir_post_fusion
    with watched() as mine, watched(all_threads=True) as everywhere:
        with watched() as inner:
            debug.log_ir_post_fusion([])  # no graph is lowered: reading it fails, which stays inside
        thread = threading.Thread(target=debug.log_ir_post_fusion, args=([],))
        thread.start()
        thread.join()
    assert debug.log_ir_post_fusion is plain
    assert [found.error is not None for found in (inner, mine, everywhere)] == [True, False, True]


def test_a_torch_without_the_place_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "REPORT", ("torch._inductor.debug", "no_such_report"))
    with pytest.raises(UnsupportedTorchError, match="no_such_report"), watched():
        pass
