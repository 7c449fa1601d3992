"""CompileProfiler: the recompilations of what it compiles, whatever backend is inside."""

from typing import Any

import torch

import graphprobe


def f(x: Any) -> Any:
    return x * 2


def test_as_the_profiler_of_torch_was_used() -> None:
    with graphprobe.CompileProfiler() as prof:
        compiled = torch.compile(f, backend=prof)
        for n in (3, 4, 5):
            assert compiled(torch.ones(n)).tolist() == [2.0] * n
    assert prof.compiles == 2
    assert "size-changed ×1: the size of dim 0 of x changed: 3, 4" in prof.report()
    assert "torch._dynamo.mark_dynamic(x, 0)" in prof.report()


def test_others_do_not_count_and_one_that_is_never_used_says_so() -> None:
    with graphprobe.CompileProfiler() as prof:
        torch.compile(lambda x: x - 1, backend="eager")(torch.ones(3))
    assert prof.report() == "no recompilations: nothing was compiled with this backend"
    other = torch.compile(lambda x: x + 1, backend="eager")
    with graphprobe.CompileProfiler() as prof:
        compiled = torch.compile(f, backend=prof)
        compiled(torch.ones(3))
        other(torch.ones(3))
        other(torch.ones(4))
    assert prof.report() == "no recompilations"


def test_without_a_block_it_begins_by_itself() -> None:
    inside = torch._dynamo.convert_frame
    before = inside.exceeds_recompile_limit
    prof = graphprobe.CompileProfiler("aot_eager")
    compiled = torch.compile(f, backend=prof)
    assert inside.exceeds_recompile_limit is before
    x = torch.ones(3, requires_grad=True)
    compiled(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0] * 3
    compiled(torch.ones(4))
    prof.close()
    assert inside.exceeds_recompile_limit is before
    compiled(torch.ones(4, 4))
    assert [group.kind for group in prof.result().groups] == ["requires-grad-changed"]
