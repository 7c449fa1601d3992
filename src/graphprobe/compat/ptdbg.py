"""ptdbg_ascend's names: `from graphprobe.compat.ptdbg import *`, with the same arguments and the same files.

It works for whatever device the model is on; docs/ptdbg.md tells what is different.
"""

from __future__ import annotations

import logging
import os
import random
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphprobe.compat.ptdbg_collect import (
    Collecting,
    checked_dump_path,
    checked_option,
    checked_output,
    checked_pair,
    checked_seed,
    checked_switch,
)
from graphprobe.errors import UsageError
from graphprobe.report.visible import echo

if TYPE_CHECKING:
    from graphprobe.compare.result import CallName

__all__ = [
    "acc_cmp_dump",
    "compare",
    "overflow_check",
    "parse",
    "register_hook",
    "seed_all",
    "set_dump_path",
    "set_dump_switch",
]

logger = logging.getLogger("graphprobe")


class _Tool:
    """What the functions below have been told; they are a program's only handle on it."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self.dump_step: int | None = None
        self.collecting: Collecting | None = None
        self.watch: Any = None


_tool = _Tool()


def seed_all(seed: int = 1234, mode: bool = False) -> None:
    """Seed Python, numpy and torch, on every device.

    Args:
        seed: 0 to 2**32 - 1. `PYTHONHASHSEED` is set for child processes.
        mode: whether torch is to use deterministic algorithms, and raise where it has none.

    Raises:
        UsageError: a wrong argument.
    """
    number = checked_seed(seed)
    if not isinstance(mode, bool):
        raise UsageError(f"mode={mode!r}: expected True or False", hint="seed_all(1234, mode=True)")
    import torch

    os.environ["PYTHONHASHSEED"] = str(number)
    random.seed(number)
    if (numpy := sys.modules.get("numpy")) is not None:  # torch has loaded it, where it is installed
        numpy.random.seed(number)
    torch.manual_seed(number)  # of every accelerator, too
    if mode:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
        torch.use_deterministic_algorithms(True)


def set_dump_path(path: str | os.PathLike[str]) -> None:
    """Where the next dump goes: the name of its text, `./npu_dump.pkl`; the values go into a folder beside it.

    Raises:
        UsageError: the folder is not there or cannot be written to, `path` is a folder, or a dump is going on.
    """
    file = checked_dump_path(path)
    if _tool.collecting is not None:
        raise UsageError(f"set_dump_path({str(path)!r}) while the dump is on", hint='call set_dump_switch("OFF") first')
    _tool.path = file


def acc_cmp_dump(*args: Any, **kwargs: Any) -> None:
    """For `register_hook`: dump what goes in and out of each call."""
    raise UsageError("acc_cmp_dump is not to be called", hint="register_hook(model, acc_cmp_dump, dump_step=1)")


def overflow_check(*args: Any, **kwargs: Any) -> None:
    """For `register_hook`: look for overflows."""
    raise UsageError("overflow_check is not to be called", hint="register_hook(model, overflow_check, overflow_nums=1)")


def register_hook(model: Any, hook: Any, **kwargs: Any) -> None:
    """Say what is to be done; calls of every model in the process are seen, not only those of `model`.

    Args:
        model: a `torch.nn.Module`.
        hook: `acc_cmp_dump`, which waits for `set_dump_switch("ON")`, or `overflow_check`, which begins at once.
        **kwargs: of `acc_cmp_dump`: `dump_step`, 1 to 100. With 1 (the default) all elements are kept, otherwise the
            first 256, every so manyth of the middle, and the last 256. Of `overflow_check`: `overflow_nums`, the
            overflow at which the program is stopped; 1 if it is not given.

    Raises:
        UsageError: a wrong argument.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        raise UsageError(
            f"model is a {type(model).__name__}: expected a torch.nn.Module", hint="pass the model that is trained"
        )
    if hook is acc_cmp_dump:
        step = checked_option("acc_cmp_dump", kwargs)
        if _tool.collecting is not None:
            raise UsageError("register_hook while the dump is on", hint='call set_dump_switch("OFF") first')
        _tool.dump_step = step
    elif hook is overflow_check:
        _watch_overflows(checked_option("overflow_check", kwargs))
    else:
        raise UsageError(
            f"hook={getattr(hook, '__name__', hook)!r}: expected acc_cmp_dump or overflow_check of this module",
            hint="from graphprobe.compat.ptdbg import *",
        )


def _watch_overflows(number: int) -> None:
    from graphprobe.probe.api.overflow import OverflowFiles, OverflowWatch

    if _tool.watch is not None:
        _tool.watch.stop()
    _tool.watch = OverflowWatch(OverflowFiles(Path.cwd()), limit=number)
    _tool.watch.start()


def set_dump_switch(switch: str, mode: int = 1, scope: Sequence[str] = ()) -> None:
    """Begin a dump, or end it and write its files; a dump that is there under the same name is replaced.

    Args:
        switch: `ON` or `OFF`. `OFF` without `ON` does nothing.
        mode: 1: every call; 2: just those in `scope`; 3: from the first to the second, both included; 4: the same, and
            only where they stand in the program. With 2 to 4 the text has stacks.
        scope: names of calls, `1478_Tensor_permute` for both directions or `1484_Tensor_transpose_forward` for one.

    Raises:
        UsageError: a wrong argument; `ON` before `set_dump_path` and `register_hook(model, acc_cmp_dump)`, or twice.
    """
    on, wanted = checked_switch(switch, mode, scope)
    if not on:
        collecting, _tool.collecting = _tool.collecting, None
        if collecting is not None:
            collecting.finish()
        return
    if _tool.collecting is not None:
        raise UsageError("the dump is on already", hint='call set_dump_switch("OFF") at the end of each step')
    if _tool.path is None:
        raise UsageError("no file to dump to", hint='call set_dump_path("./npu_dump.pkl") before set_dump_switch("ON")')
    if _tool.dump_step is None:
        raise UsageError("no hook is registered", hint="call register_hook(model, acc_cmp_dump, dump_step=1) first")
    _tool.collecting = Collecting(_tool.path, wanted, _tool.dump_step)


def compare(input_param: Any, output_path: Any, stack_mode: bool = False) -> Path:
    """Compare two dumps.

    Args:
        input_param: `npu_pkl_path`, `bench_pkl_path`, `npu_dump_data_dir`, `bench_dump_data_dir`: the dump in question,
            and the one that it is held against.
        output_path: an existing folder.
        stack_mode: whether the result gets a column with the stacks, which dumps of mode 2 and 3 have.

    Returns:
        The file, `compare_result_<timestamp>.csv`: the source's columns, then `Verdict` and what it rests on.

    Raises:
        UsageError: a wrong argument.
    """
    paths, folder = checked_pair(input_param), checked_output(output_path)
    if not isinstance(stack_mode, bool):
        raise UsageError(f"stack_mode={stack_mode!r}: expected True or False", hint="True adds a column with stacks")
    from graphprobe.compare.open import open_dump
    from graphprobe.compare.run import compare_dumps
    from graphprobe.report.comparison import write_csv

    candidate = open_dump(paths["npu_pkl_path"], data_dir=paths["npu_dump_data_dir"])
    reference = open_dump(paths["bench_pkl_path"], data_dir=paths["bench_dump_data_dir"])
    path = folder / f"compare_result_{datetime.now():%Y%m%d%H%M%S}.csv"
    number = 1
    while path.exists():
        path = folder / f"compare_result_{datetime.now():%Y%m%d%H%M%S}_{number}.csv"
        number += 1
    with compare_dumps(candidate, reference) as found:
        with open(path, "x", newline="", encoding="utf-8") as file:
            write_csv(found.rows(), file, stack=stack_mode, label=_slot_label)
        for text in found.summary.notes:
            logger.info("ptdbg: %s", text)
    echo(f"Wrote {path}")
    return path


def parse(pkl: str | os.PathLike[str], module_name: str) -> None:
    """Print the stack and the statistics of a call.

    Args:
        pkl: the text of a dump.
        module_name: name of a call, `21_Torch_batch_normal` for both directions or with `_forward` or `_backward`.

    Raises:
        UsageError: there is no such file or no such call in it, or the file is a pickle.
    """
    from graphprobe.compat.ptdbg_collect import lines_of_call

    for line in lines_of_call(pkl, module_name):
        echo(line)


def _slot_label(call: CallName, slot: str, direction: str) -> str:
    """`21_Torch_norm_forward_input.0`; `linear.3.forward input.0` for a call of another format."""
    from graphprobe.store.foreign.names import ptdbg_name
    from graphprobe.store.foreign.ptdbg import slot_name

    if ptdbg_name(call.label) is None:
        return f"{call.label} {slot}"
    return f"{call.label}_{slot_name(slot, 'backward' if direction == 'backward' else 'forward') or slot}"
