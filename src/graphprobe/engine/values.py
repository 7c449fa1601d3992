"""Snapshots of the values a graph was called with, bit-exact: storages, views of them, random generators."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors.torch import load_file, save

from graphprobe.engine import replay
from graphprobe.internals.quiet import hint, is_fake, quiet

Put: TypeAlias = Callable[[torch.Tensor], dict[str, int | str] | None]

ALIGNMENT = 64
"""A storage's window starts at a multiple of this many bytes, so that restored tensors keep their alignment."""


@dataclass(frozen=True, slots=True)
class CapturedValues:
    """Values at one moment, detached from the program that owns them.

    Attributes:
        doc: JSON-ready description: `values` (records, in order), `storages`, `rng`, `state`, `schema`.
        tensors: flat uint8 CPU tensors: the storages `s0`, `s1`, … and generator states `rng.cpu`, `rng.cuda:0`, …
    """

    doc: dict[str, Any]
    tensors: dict[str, torch.Tensor] = field(repr=False)

    @property
    def size_bytes(self) -> int:
        """Bytes of tensor data held, generator states included."""
        return sum(t.numel() for t in self.tensors.values())

    @property
    def opaque(self) -> list[str]:
        """Why values could not be captured, one line each with the value's position; empty when all were."""
        return [line for i, record in enumerate(self.doc["values"]) for line in why_opaque(record, str(i))]

    def restore(self, device: str | None = None) -> list[Any]:
        """Fresh values, bit-exact, with strides and aliasing as captured.

        Args:
            device: puts every tensor there, e.g. `cpu` for a capture made on `cuda:0`; None: where it was.

        Raises:
            graphprobe.engine.replay.Undecided: a value is opaque.
        """
        with quiet():
            return replay.restore_all(self.tensors, self.doc, device)


@dataclass(slots=True)
class _Plan:
    """The storages that a sequence of values stands on, each with the byte window its views cover."""

    owners: dict[tuple[str, int], torch.Tensor] = field(default_factory=dict)
    windows: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    names: dict[tuple[str, int], str] = field(default_factory=dict)

    def view(self, tensor: torch.Tensor) -> str:
        storage = tensor.untyped_storage()
        # Empty storages all live at address 0 and share nothing.
        address = storage.data_ptr() or -1 - len(self.owners)
        key = (str(tensor.device), address)
        begin, end = window(int(tensor.storage_offset()), tensor.shape, tensor.stride(), tensor.element_size())
        if end > storage.nbytes():
            raise ValueError(f"storage of {storage.nbytes()} bytes is smaller than its view, which ends at byte {end}")
        if key in self.windows:
            old_begin, old_end = self.windows[key]
            if begin == end:
                begin, end = old_begin, old_end
            elif old_begin != old_end:
                begin, end = min(begin, old_begin), max(end, old_end)
        self.owners.setdefault(key, tensor)
        self.windows[key] = (begin, end)
        return self.names.setdefault(key, f"s{len(self.names)}")


def window(offset: int, shape: Sequence[int], stride: Sequence[int], element_size: int) -> tuple[int, int]:
    """First byte (aligned down) and end of the bytes a view covers, within its storage."""
    begin = offset * element_size
    if 0 in shape:
        return begin // ALIGNMENT * ALIGNMENT, begin // ALIGNMENT * ALIGNMENT
    last = sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    return begin // ALIGNMENT * ALIGNMENT, int(begin + (last + 1) * element_size)


def why_opaque(record: Mapping[str, Any], path: str = "") -> list[str]:
    """Why a value, or parts of it, could not be captured, one line each with the place; empty when it was."""
    if record["kind"] == "opaque":
        return [f"value {path}: {record['reason']}"]
    items = record.get("items", ())
    pairs = items.items() if isinstance(items, dict) else enumerate(items)
    return [line for key, item in pairs for line in why_opaque(item, f"{path}.{key}")]


def why_not(tensor: torch.Tensor) -> str | None:
    """Why a tensor cannot be snapshot as a view of plain storage; None when it can."""
    with quiet():
        return _why_not(tensor)


def _why_not(tensor: torch.Tensor) -> str | None:
    if is_fake(tensor):
        return "a tensor without data (fake or meta)"
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return f"tensor subclass {type(tensor).__module__}.{type(tensor).__qualname__}"
    if tensor.layout is not torch.strided:
        return f"layout {tensor.layout}"
    if tensor.is_quantized or tensor.is_nested:
        return "quantized tensor" if tensor.is_quantized else "nested tensor"
    if tensor.device.type not in ("cpu", "cuda"):
        return f"device {tensor.device}"
    return None


def _tensor_record(tensor: torch.Tensor, plan: _Plan) -> dict[str, Any]:
    reason = _why_not(tensor)
    if reason is not None:
        return {"kind": "opaque", "reason": reason}
    try:
        name = plan.view(tensor)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        return {"kind": "opaque", "reason": f"its storage cannot be read: {error}"}
    record = {
        "kind": "tensor",
        "storage": name,
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "storage_offset": tensor.storage_offset(),
        "device": str(tensor.device),
        "requires_grad": tensor.requires_grad,
        "is_parameter": isinstance(tensor, torch.nn.Parameter),
        "conj": tensor.is_conj(),
        "neg": tensor.is_neg(),
    }
    if not tensor.is_leaf:
        record["computed"] = True
    return record


def _record(value: object, plan: _Plan) -> dict[str, Any]:
    if isinstance(value, torch.Tensor):
        return _tensor_record(value, plan)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        number = hint(value)
        unknown = {"kind": "opaque", "reason": "symbolic number without a value"}
        return unknown if number is None else _record(number, plan)
    if value is None or type(value) in (bool, int, str):
        return {"kind": "none" if value is None else type(value).__name__, "value": value}
    if type(value) is float:
        return {"kind": "float", "value": struct.pack("<d", value).hex()}
    if type(value) is complex:
        return {"kind": "complex", "value": struct.pack("<dd", value.real, value.imag).hex()}
    if isinstance(value, torch.device):
        return {"kind": "device", "value": str(value)}
    if isinstance(value, torch.dtype):
        return {"kind": "dtype", "value": str(value).removeprefix("torch.")}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {"kind": kind, "items": [_record(item, plan) for item in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"kind": "dict", "items": {key: _record(item, plan) for key, item in value.items()}}
    if value is replay.UNCHANGED or value is replay.SCRATCH:
        return {"kind": "unchanged" if value is replay.UNCHANGED else "scratch"}
    return {"kind": "opaque", "reason": f"{type(value).__module__}.{type(value).__qualname__}"}


def _bytes_of(tensor: torch.Tensor, begin: int, end: int) -> torch.Tensor:
    """On the CPU; of a tensor that is there, its own memory."""
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    return flat[begin:end].to("cpu")


def measure(values: Sequence[object]) -> int:
    """Bytes that `capture` would hold for these values' storages, computed without copying; generators not counted."""
    with quiet():
        plan = _Plan()
        for value in values:
            _record(value, plan)
        return sum(end - begin for begin, end in plan.windows.values())


def capture(values: Sequence[object], *, rng: bool = True, put: Put | None = None) -> CapturedValues:
    """A bit-exact snapshot of `values`; it draws no random number, records no gradient and is seen by no mode.

    Each distinct storage is copied once, and of it only the bytes between the first and the last one a view covers.
    What cannot be captured (generators, tensor subclasses, fake tensors) becomes a record of kind `opaque` with the
    reason. Tensors on a GPU are copied on the current stream, which is waited for.

    Args:
        rng: also keep the state of the CPU generator, and of those of the CUDA devices that the values live on.
        put: keeps the bytes of a storage elsewhere, and says where: that goes into the document, and the bytes do not
            go into `tensors`. None: they do.
    """
    with quiet():
        plan = _Plan()
        records = [_record(value, plan) for value in values]
        storages: dict[str, dict[str, Any]] = {}
        tensors: dict[str, torch.Tensor] = {}
        for key, name in plan.names.items():
            begin, end = plan.windows[key]
            flat = _bytes_of(plan.owners[key], begin, end)
            elsewhere = None if put is None else put(flat)
            if elsewhere is None:
                tensors[name] = flat.clone() if key[0] == "cpu" else flat
            storages[name] = {"device": key[0], "first_byte": begin, "size_bytes": end - begin, **(elsewhere or {})}
        generators: list[str] = []
        if rng:
            used = sorted({key[0] for key in plan.names} - {"cpu"})
            tensors["rng.cpu"] = torch.get_rng_state()
            tensors |= {f"rng.{device}": torch.cuda.get_rng_state(device) for device in used}
            generators = ["cpu", *used]
        doc = {"schema": 1, "values": records, "storages": storages, "rng": generators, "state": _state()}
        return CapturedValues(doc, tensors)


def capture_after(
    before: CapturedValues, outputs: Sequence[object], inputs: Sequence[object], *, donated: Collection[int] = ()
) -> CapturedValues:
    """The outputs of a call and the inputs it changed: two values, `[outputs, inputs]`, what a replay compares with.

    Args:
        before: the inputs as captured before the call.
        inputs: the same inputs after it. Those whose bits are as before are kept as `unchanged`, without their data.
        donated: positions of inputs that the graph may use as scratch memory; what they hold afterwards means nothing.
    """
    with quiet():
        after: list[object] = []
        storages = {
            name: before.tensors[name].to(entry["device"], copy=True) for name, entry in before.doc["storages"].items()
        }
        for i, (record, now) in enumerate(zip(before.doc["values"], inputs, strict=True)):
            if i in donated:
                after.append(replay.SCRATCH)
                continue
            try:
                same = not replay.differences(replay.restore(record, storages, before.doc), now)
            except replay.Undecided:
                same = True
            after.append(replay.UNCHANGED if same else now)
        return capture([list(outputs), after], rng=False)


def _state() -> dict[str, Any]:
    return {
        "num_threads": torch.get_num_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "autocast": {
            device: str(torch.get_autocast_dtype(device)).removeprefix("torch.")
            for device in ("cpu", "cuda")
            if torch.is_autocast_enabled(device)
        },
    }


def buffer_of(flat: torch.Tensor) -> memoryview:
    """The bytes of a flat uint8 tensor on the CPU, which are not copied."""
    array: Any = flat.numpy()
    return memoryview(array)


def safetensors_bytes(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> bytes:
    """The safetensors file of flat uint8 tensors."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "U8", "shape": [tensor.numel()], "data_offsets": [position, position + tensor.numel()]}
        position += tensor.numel()
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with quiet():
        return b"".join([struct.pack("<Q", len(text)), text, *map(buffer_of, tensors.values())])


def tensor_file(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """The safetensors file of tensors with their dtypes and shapes, as `safetensors.torch.load_file` reads it."""
    with quiet():
        return save(dict(tensors))


def tensors_in(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, by name; raises what safetensors raises for another file."""
    return load_file(path)


def to_bytes(captured: CapturedValues) -> tuple[bytes, bytes]:
    """`(safetensors, json)`: storages as flat uint8 tensors, and the records."""
    text = json.dumps(captured.doc, separators=(",", ":"), allow_nan=False)
    return safetensors_bytes(captured.tensors, {"format": "pt"}), text.encode()


def from_bytes(safetensors: bytes, records: bytes) -> CapturedValues:
    """The inverse of `to_bytes`."""
    with quiet():
        return CapturedValues(json.loads(records), replay.parse_safetensors(safetensors)[0])


def one_file_bytes(values: Mapping[str, object]) -> bytes:
    """Named values in one safetensors file, the records in its metadata: a script's `constants.safetensors`."""
    captured = capture([dict(values)], rng=False)
    return safetensors_bytes(captured.tensors, {"format": "pt", "graphprobe": json.dumps(captured.doc)})


def equal_bits(a: object, b: object, *, stride: bool = False) -> bool:
    """Whether `same_bits` has nothing to say; it does not measure by how much tensors differ."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return not same_bits(a, b, stride=stride)
    with quiet():
        if a.dtype != b.dtype or a.shape != b.shape or (stride and a.stride() != b.stride()):
            return False
        return torch.equal(replay.flat_bits(a), replay.flat_bits(b).to(a.device))


def same_bits(a: object, b: object, *, stride: bool = False) -> list[str]:
    """How `b` differs from `a`, one line each; empty when dtype, shape, (stride) and every raw bit agree.

    Lists, tuples and dicts are compared item by item. Conjugate and negative bits are resolved first; NaN equals NaN
    when the payloads do, 0.0 and -0.0 differ.
    """
    with quiet():
        return replay.differences(a, b, stride)
