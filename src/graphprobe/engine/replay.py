"""What every generated script carries to run on its own: it reads saved values, runs, and compares bit for bit.

The part between the two marks below is copied, as text, into each script (`embedded()`), so it may need nothing but
torch and the standard library. It is real code here, so that graphprobe restores and compares with the very same lines.
"""

from __future__ import annotations

# <replay>
import argparse
import contextlib
import importlib
import json
import struct
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

UNCHANGED = object()
SCRATCH = object()


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def parse_safetensors(data: bytes) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The file's tensors (all of them flat bytes) and its metadata."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    blob = bytearray(data[8 + length :]) or bytearray(1)
    flat = torch.frombuffer(blob, dtype=torch.uint8)
    return {name: flat[slice(*entry["data_offsets"])].clone() for name, entry in header.items()}, metadata


def load_constants(path: Path) -> dict[str, Any]:
    """The named values of a `constants.safetensors`, whose metadata hold the records."""
    if not path.is_file():
        raise Undecided(f"{path} is missing: it holds the constants of this graph")
    tensors, metadata = parse_safetensors(path.read_bytes())
    values: dict[str, Any] = restore_all(tensors, json.loads(metadata["graphprobe"]))[0]
    return values


def restore(record: Mapping[str, Any], storages: Mapping[str, torch.Tensor], doc: Mapping[str, Any]) -> Any:
    """One value from its record. Views of one storage share memory again; every call works on `storages` as given."""
    kind = record["kind"]
    if kind == "tensor":
        dtype = getattr(torch, record["dtype"])
        origin = doc["storages"][record["storage"]]["first_byte"]
        offset = record["storage_offset"] - origin // dtype.itemsize
        data = storages[record["storage"]]
        value = torch.empty(0, dtype=dtype, device=data.device)
        value = value.set_(data.untyped_storage(), offset, record["shape"], record["stride"])
        if record["conj"]:
            value = value.conj()
        if record["neg"]:
            value = torch.ops.aten._neg_view(value)
        if record["is_parameter"]:
            return torch.nn.Parameter(value, requires_grad=record["requires_grad"])
        if not record["requires_grad"]:
            return value
        return computed(value.requires_grad_()) if record.get("computed") else value.requires_grad_()
    if kind in ("list", "tuple"):
        items = [restore(item, storages, doc) for item in record["items"]]
        return items if kind == "list" else tuple(items)
    if kind == "dict":
        return {key: restore(item, storages, doc) for key, item in record["items"].items()}
    if kind == "float":
        return struct.unpack("<d", bytes.fromhex(record["value"]))[0]
    if kind == "complex":
        return complex(*struct.unpack("<dd", bytes.fromhex(record["value"])))
    if kind == "device":
        return torch.device(record["value"])
    if kind == "dtype":
        return getattr(torch, record["value"])
    if kind == "unchanged":
        return UNCHANGED
    if kind == "scratch":
        return SCRATCH
    if kind == "opaque":
        raise Undecided(f"a value was not saved: {record['reason']}")
    return record["value"]


def computed(leaf: torch.Tensor) -> torch.Tensor:
    """The same values as a result of autograd, which, unlike a leaf, may be changed in place; its gradient is kept."""
    with torch.enable_grad():
        value = leaf.clone()
        if value.stride() != leaf.stride():
            value = leaf.view_as(leaf)
    value.retain_grad()
    return value


def restore_all(tensors: Mapping[str, torch.Tensor], doc: Mapping[str, Any], device: str | None = None) -> list[Any]:
    """Every value of a capture, with fresh memory for each storage: where it was captured, or on `device`."""
    storages = {name: tensors[name].clone().to(device or entry["device"]) for name, entry in doc["storages"].items()}
    return [restore(record, storages, doc) for record in doc["values"]]


def set_state(tensors: Mapping[str, torch.Tensor], doc: Mapping[str, Any]) -> None:
    """Random generators and the settings that change results, as they were when the values were captured."""
    for device in doc["rng"]:
        if device == "cpu":
            torch.set_rng_state(tensors["rng.cpu"].clone())
        else:
            torch.cuda.set_rng_state(tensors[f"rng.{device}"].clone(), device)
    state = doc["state"]  # what is so already is not set: torch's caches would have other keys
    torch.set_num_threads(state["num_threads"])
    if torch.get_float32_matmul_precision() != state["float32_matmul_precision"]:
        torch.set_float32_matmul_precision(state["float32_matmul_precision"])
    if torch.are_deterministic_algorithms_enabled() != state["deterministic"]:
        torch.use_deterministic_algorithms(state["deterministic"], warn_only=True)


def flat_bits(value: torch.Tensor) -> torch.Tensor:
    value = value.detach().resolve_conj().resolve_neg()
    flat = value.reshape(-1).contiguous()
    if flat.stride(0) != 1:  # one element, which is contiguous with any stride
        flat = flat.clone(memory_format=torch.contiguous_format).as_strided(flat.shape, (1,))
    return flat.view(torch.uint8)


def differences(a: Any, b: Any, stride: bool = False, path: str = "") -> list[str]:
    """How `b` differs from `a`, one line each; raw bits decide, so NaN payloads and the sign of zero count."""
    where = f"{path}: " if path else ""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        for what in ("dtype", "shape"):
            if (left := getattr(a, what)) != (right := getattr(b, what)):
                return [f"{where}{what} {right}, expected {left}"]
        found = []
        if stride and a.stride() != b.stride():
            found.append(f"{where}stride {b.stride()}, expected {a.stride()}")
        left, right = flat_bits(a), flat_bits(b).to(a.device)
        if a.numel() and not torch.equal(left, right):
            count = int((left != right).view(-1, a.element_size()).any(dim=1).sum())
            wide = torch.complex128 if a.is_complex() else torch.float64
            gap = (a.detach().to(wide) - b.detach().to(a.device).to(wide)).abs().nan_to_num(0.0).max().item()
            found.append(f"{where}{count} of {a.numel()} elements differ, largest absolute difference {gap:.3g}")
        return found
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            return [f"{where}{len(b)} values, expected {len(a)}"]
        pairs = enumerate(zip(a, b, strict=True))
        return [line for i, (x, y) in pairs for line in differences(x, y, stride, f"{path}[{i}]")]
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return [line for key in a for line in differences(a[key], b[key], stride, f"{path}[{key!r}]")]
    if isinstance(a, float) and isinstance(b, float):
        return [] if struct.pack("<d", a) == struct.pack("<d", b) else [f"{where}{b!r}, expected {a!r}"]
    return [] if type(a) is type(b) and a == b else [f"{where}{b!r}, expected {a!r}"]


def synthetic(meta: Any) -> Any:
    """An input made from its recorded shape, stride and dtype: 0 or 1 for integers, else in [0, 1)."""
    if not isinstance(meta, dict):
        return meta
    dtype, shape, stride = getattr(torch, meta["dtype"]), meta["shape"], meta["stride"]
    size = 1 + sum((n - 1) * abs(s) for n, s in zip(shape, stride, strict=True)) if 0 not in shape else 0
    if dtype.is_floating_point or dtype.is_complex:
        base = torch.rand(size, dtype=torch.complex64 if dtype.is_complex else torch.float32).to(dtype)
    else:
        base = torch.randint(0, 2, (size,)).to(dtype)
    base = base.to(meta["device"])
    return base.as_strided(shape, stride).requires_grad_(bool(meta.get("requires_grad")))


class Undecided(Exception):
    """The script cannot say whether the outputs agree; it exits 125."""


def load(folder: Path, stem: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
    values, records = folder / f"{stem}.safetensors", folder / f"{stem}.json"
    if not (values.is_file() and records.is_file()):
        return None
    return parse_safetensors(values.read_bytes())[0], json.loads(records.read_text("utf-8"))


def brief(value: Any) -> str:
    return f"{str(value.dtype)[6:]}{list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


def check(expected: Sequence[Any], got: Any, label: str) -> int:
    bad = 0
    for i, (want, have) in enumerate(zip(expected, got, strict=True)):
        found = differences(want, have)
        bad += bool(found)
        say(f"{label} {i}: {brief(have)} {'; '.join(found) if found else 'equal, bit for bit'}")
    return bad


def replay(run: Callable[[list[Any]], Any], metas: Sequence[Any], folder: Path, eager: bool) -> int:
    """Runs once on the saved inputs, or on made-up ones, and returns the exit code: 0 equal or nothing to compare, 1.

    Graphs after AOTAutograd hold their own gradients and casts; an `eager` one runs under the recorded autocast.
    """
    saved = load(folder, "inputs")
    if saved is None:
        torch.manual_seed(0)
        args = [synthetic(meta) for meta in metas]
        say(f"no inputs.safetensors in {folder}: {len(args)} inputs made from recorded shapes, seed 0")
        with torch.set_grad_enabled(eager):
            outputs = run(list(args))
        for i, out in enumerate(outputs if isinstance(outputs, (list, tuple)) else [outputs]):
            say(f"output {i}: {brief(out)}")
        say("ran once; nothing was compared")
        return 0
    args = restore_all(*saved)
    recorded = load(folder, "outputs")
    set_state(*saved)
    with contextlib.ExitStack() as modes:
        modes.enter_context(torch.set_grad_enabled(eager))
        for device, dtype in saved[1]["state"]["autocast"].items() if eager else ():
            modes.enter_context(torch.autocast(device, getattr(torch, dtype)))
        outputs = run(list(args))
    got = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    if recorded is None:
        say(f"ran on the saved inputs, {len(got)} outputs; no outputs.safetensors, so nothing was compared")
        return 0
    expected, after = [*restore_all(*recorded), []][:2]
    if len(expected) != len(got):
        say(f"{len(got)} outputs, expected {len(expected)}\nDIFFERENT")
        return 1
    bad = check(expected, got, "output")
    before = restore_all(*saved)
    changed = [i for i, want in enumerate(after) if want is not UNCHANGED and want is not SCRATCH]
    stale = [i for i, want in enumerate(after) if want is UNCHANGED and differences(before[i], args[i])]
    bad += check([after[i] for i in changed], [args[i] for i in changed], "mutated input") + len(stale)
    for i in stale:
        say(f"input {i} was changed by this run, and was not when it was recorded")
    say(f"DIFFERENT: {bad} of {len(got) + len(after)} values" if bad else f"EQUAL: all {len(got)} outputs")
    return int(bool(bad))


def main(
    make_run: Callable[[], Callable[[list[Any]], Any]],
    metas: Sequence[Any],
    file: str,
    problems: Sequence[str] = (),
    benchmark: Callable[[], Any] | None = None,
    eager: bool = False,
) -> int:
    """A generated script from its command line to its exit code: 0 equal, 1 different, 125 could not decide."""
    folder = Path(file).resolve().parent
    parser = argparse.ArgumentParser(description="Runs what this file holds and compares with what was recorded.")
    parser.add_argument("--inputs", metavar="DIR", type=Path, default=folder, help="folder of the saved values")
    parser.add_argument("--import", metavar="MODULE", dest="modules", action="append", default=[], help="import first")
    if benchmark is not None:
        parser.add_argument("--benchmark", action="store_true", help="run the generated benchmark instead")
    options = parser.parse_args()
    try:
        if problems:
            raise Undecided("; ".join(problems))
        for module in options.modules:
            importlib.import_module(module)
        if benchmark is not None and options.benchmark:
            benchmark()
            return 0
        return replay(make_run(), metas, options.inputs, eager)
    except Undecided as reason:
        say(f"cannot run in this process: {reason}")
    except Exception:
        traceback.print_exc()
        say("the run failed, so nothing could be compared")
    return 125


# </replay>


def embedded(*, file: str | None = __file__, mark: str = "replay") -> str:
    """The lines of a module between `# <mark>` and `# </mark>` for a generated script, without what graphprobe gives.

    Those of this module, which stand there if nothing else is said, define `main`, `load_constants`, `Undecided`.
    """
    text = Path(str(file)).read_text("utf-8")
    part = text.split(f"# <{mark}>\n", 1)[1].split(f"# </{mark}>\n", 1)[0]
    return "".join(line for line in part.splitlines(True) if not line.startswith("from graphprobe")).rstrip() + "\n"
