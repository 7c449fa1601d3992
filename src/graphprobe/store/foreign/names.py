"""Names of calls in the dumps of other tools, and the name of the same API in ours."""

from __future__ import annotations

import re
from collections import defaultdict
from hashlib import blake2b
from typing import NamedTuple

from graphprobe.store.calls import CallDirection

PREFIXES: dict[str, str] = {
    "Tensor": "torch.Tensor",
    "Torch": "torch",
    "Functional": "torch.nn.functional",
    "Distributed": "torch.distributed",
    "VF": "torch._VF",
    "NPU": "torch_npu",
    "Npu": "torch_npu",
    "Aten": "torch.ops.aten",
}
"""What the first word of a foreign name stands for."""

OPERATORS: dict[str, str] = {
    **{f"__{name}__": name for name in ("add", "sub", "mul", "matmul", "lt", "le", "gt", "ge", "ne", "neg", "abs")},
    **{f"__{name}__": name for name in ("eq", "pow")},
    **{f"__i{name}__": f"{name}_" for name in ("add", "sub", "mul", "pow")},
    "__radd__": "add",
    "__rmul__": "mul",
    "__truediv__": "div",
    "__div__": "div",
    "__itruediv__": "div_",
    "__idiv__": "div_",
    "__mod__": "remainder",
    "__imod__": "remainder_",
    "__ifloordiv__": "floor_divide_",
    "__pos__": "positive",
}
"""Methods behind Python's operators, by the name of the method that torch runs for them."""

_FOREIGN = sorted(
    ((path, word) for word, path in PREFIXES.items() if word != "Npu"), key=lambda pair: len(pair[0]), reverse=True
)
OTHER = "Python"
"""First word of a name that none of the tools would have: what follows is the whole path."""

_PTDBG_KINDS = "|".join([*PREFIXES, "Module", OTHER])
_NUMBER = re.compile(r"[0-9]{1,18}")
_INDEX_FIRST = re.compile(rf"(?P<index>\d{{1,18}})_(?P<kind>{_PTDBG_KINDS})_(?P<name>.+)")
_INDEX_LAST = re.compile(rf"(?P<kind>{_PTDBG_KINDS})_(?P<name>.+)_(?P<index>\d{{1,18}})")
_SLOT = re.compile(r"(?P<call>.+)_(?P<side>input|output)(?:\.(?P<path>[\w.]+))?")
_STACK = "_stack_info"

_PARTS = ("forward", "backward", "parameters_grad")

_TORCH_FRAME = re.compile(r"[/\\](?:site|dist)-packages[/\\](?:torch|torch_npu|msprobe|ptdbg_ascend|graphprobe)[/\\]")


class PtdbgName(NamedTuple):
    """A ptdbg name, taken apart.

    Attributes:
        call: `1478_Tensor_permute_forward`, which is the call's name without the slot.
        kind, name: `Tensor`, `permute`.
        number: the one in the name.
        counted: whether the number counts the calls of this API only, as in `Torch_norm_21`, and not all calls.
        direction: forward where the name does not say.
        side: `input`, `output`, or empty for a stack and for a name without a slot.
        path: `0`, `0.1`; empty without a number.
        is_stack: whether it is the line of the call's stack.
    """

    call: str
    kind: str
    name: str
    number: int
    counted: bool
    direction: CallDirection
    side: str = ""
    path: str = ""
    is_stack: bool = False

    @property
    def pair(self) -> str:
        """What a forward and its backward have in common."""
        return f"{self.kind}.{self.name}.{self.number}"


def file_stem(name: str, *, most_bytes: int = 200) -> str:
    """`name` as the name of a file; where it cannot be one, with `_` for what is in the way, and a digest of it all."""
    safe = re.sub(r"[\x00-\x1f\x7f/\ud800-\udfff]", "_", name)
    if safe == name and len(name.encode()) <= most_bytes:
        return name
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{safe.encode()[: most_bytes - 9].decode('utf-8', 'ignore')}-{digest}"


def ptdbg_name(text: str) -> PtdbgName | None:
    """The parts of a name in either order, `21_Torch_norm…` or `Torch_norm_21…`; None for any other text."""
    is_stack = text.endswith(_STACK)
    call, side, path = text.removesuffix(_STACK), "", ""
    if not is_stack and (slot := _SLOT.fullmatch(text)):
        # The last `_input` or `_output` counts: an API may have one of these words in its name.
        call, side, path = slot["call"], slot["side"], slot["path"] or ""
    direction: CallDirection = "backward" if call.endswith("_backward") else "forward"
    core = call.removesuffix("_backward").removesuffix("_forward")
    found = _INDEX_FIRST.fullmatch(core) or _INDEX_LAST.fullmatch(core)
    if found is None:
        return None
    counted = found.re is _INDEX_LAST
    return PtdbgName(call, found["kind"], found["name"], int(found["index"]), counted, direction, side, path, is_stack)


class MsprobeName(NamedTuple):
    """An msprobe name, taken apart.

    Attributes:
        kind: `Functional`, `Tensor`, …, or `Module`.
        name: of the API, or the class of a module.
        module: path of a module, else empty.
        number: the one in the name: which call of this API, or of this module.
        part: forward, backward, or the gradients of a module's parameters.
    """

    kind: str
    name: str
    module: str
    number: int
    part: str

    @property
    def pair(self) -> str:
        """What a forward, its backward and its parameters' gradients have in common."""
        return f"{self.kind}.{self.module}.{self.name}.{self.number}"


def msprobe_name(text: str) -> MsprobeName | None:
    """The parts of `Functional.relu.0.forward` or `Module.layers.0.fc.Linear.forward.0`; None for any other text."""
    words = text.split(".")
    if words[0] in ("Module", "Cell"):
        if words[-1] in _PARTS:  # before release 2.0 a module's parameters had no number
            words.append("0")
        if len(words) < 4 or words[-2] not in _PARTS or not _NUMBER.fullmatch(words[-1]):
            return None
        return MsprobeName("Module", words[-3], ".".join(words[1:-3]), int(words[-1]), words[-2])
    if len(words) < 4 or words[-1] not in _PARTS or not _NUMBER.fullmatch(words[-2]):
        return None
    return MsprobeName(words[0], ".".join(words[1:-2]), "", int(words[-2]), words[-1])


def api_from_foreign(kind: str, name: str) -> str:
    """`Functional`, `linear` -> `torch.nn.functional.linear`; operators by the method that torch runs for them.

    A kind that is not in `PREFIXES` keeps its word: `Jit.script_fn`.
    """
    if kind in ("Module", OTHER):
        return name
    if kind in ("Tensor", "Torch"):
        name = OPERATORS.get(name, name)
    return f"{PREFIXES.get(kind, kind)}.{name}"


def foreign_from_api(api: str) -> tuple[str, str]:
    """`torch.nn.functional.linear` -> `Functional`, `linear`; the whole path under `Python` where no word fits."""
    for path, word in _FOREIGN:
        if api.startswith(f"{path}."):
            return word, api[len(path) + 1 :]
    if api.startswith("aten."):
        return "Aten", api[5:]
    return OTHER, api


class Counter:
    """Numbers the forward calls of each API in one step, and finds the number again for their backwards."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], int] = defaultdict(int)
        self._numbers: dict[str, int] = {}

    def number(self, kind: str, api: str, pair: str, direction: CallDirection) -> int:
        """Which call of `api` it is, from 0; -1 for a backward whose forward, of the same `pair`, the dump lacks.

        Several foreign names can be one API of ours, so the foreign number is of no use.
        """
        if direction == "forward":
            self._numbers[pair] = self._seen[kind, api]
            self._seen[kind, api] += 1
        return self._numbers.get(pair, -1)


def source_of(stack: tuple[str, ...]) -> str:
    """`file.py:12` of the innermost frame of `Call.stack` that is not torch's own; of all if every frame is."""
    own = (frame for frame in stack if not _TORCH_FRAME.search(frame))
    return next(own, stack[0] if stack else "").partition(" in ")[0]
