"""Every way in which a compiled program may raise; each traceback as the user would see it, the last one uncaught."""

import re
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch._functorch.config
import torch._inductor.config
from torch._dynamo.backends.common import aot_autograd

torch._dynamo.config.suppress_errors = False
# Watching switches torch's graph caches off, and that alone shows: other lines of torch stand in a traceback.
torch._inductor.config.fx_graph_cache = torch._functorch.config.enable_autograd_cache = False


def at_run_time() -> None:
    compiled = torch.compile(lambda x, index: x[index] * 2)
    compiled(torch.ones(4), torch.tensor([0, 9]))


def in_a_library_call() -> None:
    @torch.library.custom_op("errors::refuses", mutates_args=())
    def refuses(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("not with me")

    refuses.register_fake(torch.empty_like)
    torch.compile(lambda x: refuses(x.sin()) * 2)(torch.ones(4))


def in_a_late_backward() -> None:
    def refuses(gm: Any, inputs: Any) -> Any:
        raise ArithmeticError("no backward of this kind")

    backend = aot_autograd(fw_compiler=lambda gm, inputs: gm, bw_compiler=refuses)
    x = torch.ones(4, requires_grad=True)
    torch.compile(lambda x: x.sin().sum(), backend=backend)(x).backward()


def in_a_backend() -> None:
    def mine(gm: Any, inputs: Any) -> Any:
        raise KeyError("a backend's own mistake")

    torch.compile(lambda x: x.sin(), backend=mine)(torch.ones(4))


def in_a_compiler_below_aot() -> None:
    def mine(gm: Any, inputs: Any) -> Any:
        try:
            raise OSError("inner")
        except OSError as error:
            raise RuntimeError("outer") from error

    torch.compile(lambda x: x.sin(), backend=aot_autograd(fw_compiler=mine))(torch.ones(4))


def in_lowering() -> None:
    def broken_pass(graph: torch.fx.Graph) -> None:
        raise LookupError("this pass never worked")

    with torch._inductor.config.patch(post_grad_custom_post_pass=broken_pass):
        torch.compile(lambda x: x.sin() * 3)(torch.ones(4))


def in_the_c_compiler() -> None:
    with torch._inductor.config.patch({"cpp.inject_relu_bug_TESTING_ONLY": "compile_error"}):
        torch.compile(lambda x: x.relu() * 11)(torch.ones(4))


def in_user_code() -> None:
    def checked(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        assert y.shape[0] == 99, "the wrong size"
        return y

    torch.compile(checked)(torch.ones(4))


def in_fullgraph() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x.sin()

    torch.compile(broken, fullgraph=True)(torch.ones(4))


CASES: list[Callable[[], None]] = [value for name, value in list(globals().items()) if name.startswith(("at_", "in_"))]


def main(uncaught: str) -> None:
    for case in CASES:
        torch._dynamo.reset()
        try:
            case()
        except Exception as error:
            text = traceback.format_exc()
            chain = [type(error)]
            while (error := error.__cause__ or error.__context__) is not None:  # type: ignore[assignment]
                chain.append(type(error))
            print("==", case.__name__, [kind.__name__ for kind in chain])
            print(re.sub(r"eval_with_key>\.\d+", "eval_with_key>.N", text))
        else:
            print("==", case.__name__, "did not raise")
    torch._dynamo.reset()
    globals()[uncaught]()


main(sys.argv[1])
