"""`output_code.py`: Inductor's generated module, made runnable on its own."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

import torch

from graphprobe.engine import replay
from graphprobe.engine.values import one_file_bytes, why_not
from graphprobe.probe.formats import Script
from graphprobe.probe.formats.literals import input_metas, metas_text

CONSTANTS = "constants.safetensors"
STEMS = ("inputs", "outputs")

_MAIN = """
def graphprobe_run():
{loading}    return lambda args: call(args)


if __name__ == "__main__":
    sys.exit(main(graphprobe_run, {metas}, __file__, {stems!r}, {problems!r}, {benchmark}))
"""


def _guarded(body: str) -> str:
    """With the guard in its first line, where that is empty or a comment, so that the others keep their numbers."""
    first, end, rest = body.partition("\n")
    if first.strip() and not first.lstrip().startswith("#"):
        return body
    return f"{replay.GUARD}  {first}".rstrip() + end + rest


def _without_main(code: str) -> tuple[str, bool]:
    """Turns the module's own `if __name__ == "__main__":` into a function; whether there was one."""
    lines = code.splitlines()
    found = False
    for node in ast.parse(code).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'":
            lines[node.lineno - 1] = "def inductor_main():"
            found = True
    return "\n".join(lines) + "\n", found


def output_code_source(
    code: str,
    *,
    constants: Mapping[str, object] | None = None,
    inputs: Sequence[object] | None = None,
    stems: tuple[str, str] = STEMS,
) -> Script:
    """Inductor's module text with a replay main in place of its benchmark main, which `--benchmark` still runs.

    Args:
        code: the text as Inductor wrote it, in Python (`cpp_wrapper` modules included).
        constants: module attributes that Inductor sets from outside when it loads the text (`_tensor_constant0`,
            `_frozen_param1`, …); they go to `constants.safetensors`.
        inputs: the graph's example inputs (real or fake tensors, plain or symbolic numbers): what inputs are made from
            when none were saved. None takes the text's own `get_args()`.
        stems: names of the saved inputs and outputs, without suffix; `{stem}` stands for the script's own stem.

    The script exits 0 when the outputs and the mutated inputs are as recorded bit for bit (or nothing was saved to
    compare with), 1 when they are not, 125 when it cannot run. It must be run on the machine type it was made on: the
    kernels are written for that CPU or GPU.
    """
    body, benchmark = _without_main(code)
    problems: list[str] = []
    tensors = dict(constants or {})
    loading = ""
    blob = None
    for name, value in tensors.items():
        if isinstance(value, torch.Tensor) and (reason := why_not(value)) is not None:
            problems.append(f"constant {name} is no plain tensor: {reason}")
        elif not isinstance(value, (torch.Tensor, bool, int, float, str, type(None))):
            problems.append(f"constant {name} is a {type(value).__module__}.{type(value).__qualname__}")
    if tensors and not problems:
        blob = one_file_bytes(tensors)
        loading = f"    globals().update(load_constants(Path(__file__).with_name({CONSTANTS!r})))\n"
    metas = "" if inputs is None else f"METAS = {metas_text(input_metas(inputs))}\n\n"
    tail = _MAIN.format(
        loading=loading,
        metas="METAS" if metas else "get_args",
        stems=stems,
        problems=tuple(problems),
        benchmark="inductor_main" if benchmark else None,
    )
    head = "".join(f"# cannot be reproduced in another process: {line}\n" for line in problems)
    source = f"{head}{_guarded(body)}\n\n# What follows was added by graphprobe: it runs `call` and compares.\n"
    return Script(
        source=f"{source}{replay.embedded()}\n\n{metas}{tail}",
        constants=blob,
        constants_name=CONSTANTS,
        problems=tuple(problems),
    )
