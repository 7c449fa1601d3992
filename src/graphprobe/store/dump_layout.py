"""Names and folders of a dump: the tree that users of TorchAir know, and the claim of a folder nobody else has."""

from __future__ import annotations

import errno
import functools
import os
import re
from datetime import datetime, timedelta
from hashlib import blake2b
from pathlib import Path

from graphprobe.store.dump_records import Place

INDEX = "ops.jsonl"
STATS = "stats.csv"

_MAX_MODEL_BYTES = 128
_MAX_TYPE_BYTES = 64
_MAX_OP_BYTES = 96
"""With the slot that `convert` adds, a file name stays below the 255 bytes that file systems take."""

_SECONDS_TRIED = 3600


def rank_folder(world_size: int, rank: int) -> str:
    """`worldsize2_global_rank0`."""
    return f"worldsize{world_size}_global_rank{rank}"


def time_folder(started: datetime) -> str:
    """`20240131120000`, local time."""
    return f"{started:%Y%m%d%H%M%S}"


def data_folder(place: Place) -> str:
    """`<device_id>/<model_name>/<model_id>/<data_index>`, relative to the time folder."""
    return f"{place.device_id}/{folder_name_from_model(place.model_name)}/{place.model_id}/{place.data_index}"


def op_file(op_type: str, op_name: str, seq: int, time_us: int) -> str:
    """`<op_type>.<op_name>.<seq>.<timestamp>`; `seq` alone keeps the files of a dump apart.

    Launch `mm.2` is `mm-2`: `mm_2` would be the name of a node, which it need not compute.
    """
    return f"{_op_stem(op_type, op_name)}.{seq}.{time_us}"


@functools.lru_cache(maxsize=4096)
def _op_stem(op_type: str, op_name: str) -> str:
    kind = _shortened(re.sub(r"[^A-Za-z0-9_-]", "_", op_type), _MAX_TYPE_BYTES)
    name = _shortened(re.sub(r"[^A-Za-z0-9_-]", "_", op_name.replace(".", "-")), _MAX_OP_BYTES)
    return f"{kind}.{name}"


def folder_name_from_model(model_name: str) -> str:
    """`model_name` with `_` for each `.`, `/`, `\\`, space, and anything else that is hostile in a path.

    Letters and digits of any script and `_ - + = @ , #` stay; a `-` in front does not, and a long name is cut and gets
    a digest of the whole. Two models that come out alike differ in their ids.
    """
    return _shortened(re.sub(r"[^\w\-+=@,#]|^-", "_", model_name), _MAX_MODEL_BYTES)


def device_number(device: str) -> int:
    """Index of a device by torch's name: 1 of `cuda:1`; 0 without an index, and for every CPU."""
    kind, _, index = device.partition(":")
    return int(index) if kind != "cpu" and index.isdecimal() else 0


def claim_time_folder(dump_path: Path, *, world_size: int, rank: int, started: datetime) -> Path:
    """Make the time folder of this process: of the next second that nobody has, from `started` on.

    Raises:
        OSError: `dump_path` does not exist or cannot be written to.
    """
    parent = dump_path / rank_folder(world_size, rank)
    parent.mkdir(exist_ok=True)
    for later_s in range(_SECONDS_TRIED):
        folder = parent / time_folder(started + timedelta(seconds=later_s))
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), str(parent / time_folder(started)))


def _shortened(name: str, max_bytes: int) -> str:
    """`name` in at most so many bytes of UTF-8; one that had to be cut ends in a digest of the whole."""
    data = name.encode("utf-8")
    if len(data) <= max_bytes:
        return name or "unnamed"
    digest = blake2b(data, digest_size=4).hexdigest()
    return f"{data[: max_bytes - 9].decode('utf-8', 'ignore')}-{digest}"
