"""Values in a file: the same as captured, each content once, and in memory only while somebody looks."""

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from graphprobe.engine import value_file
from graphprobe.engine.forked_child import isolated
from graphprobe.engine.value_file import LARGE, ValueFile, is_stored_once, restored, stored
from graphprobe.engine.values import capture, same_bits

MANY = LARGE // 4  # elements of float32 that make a storage large


def size_of(file: ValueFile) -> int:
    return os.fstat(file._file.fileno()).st_size


def mapped() -> int:
    """Bytes of files without a name that this process has mapped."""
    gc.collect()
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("(deleted)")]
    return sum(int(line[0].partition("-")[2], 16) - int(line[0].partition("-")[0], 16) for line in lines)


def awkward() -> dict[str, Any]:
    base = torch.randn(8, MANY)
    large = {
        "whole": base,
        "view": base[3:5, 7 : MANY - 5],
        "transposed": torch.randn(300, 200).t(),
        "expanded": torch.randn(MANY, 1).expand(MANY, 3),
        "conjugate": torch.randn(MANY, dtype=torch.complex64).conj(),
        "narrow": torch.randn(MANY).bfloat16(),
        "odd offset": torch.arange(2 * MANY, dtype=torch.int16)[1::2],
    }
    other = {"small": torch.randn(3), "number": 0.1, "text": "a", "none": None}
    return {**large, **other, "empty of large": base[:0], "parameter": torch.nn.Parameter(torch.randn(2, MANY))}


def test_what_is_restored_is_what_was_stored() -> None:
    values, file = awkward(), ValueFile()
    (found,) = restored(*stored([list(values.values())], file))
    del file  # the values keep it
    assert len(found) == len(values)
    for (name, value), got in zip(values.items(), found, strict=True):
        assert same_bits(value, got, stride=True) == [], name
    assert isinstance(found[-1], torch.nn.Parameter)
    assert [type(v) for v in found[7:11]] == [torch.Tensor, float, str, type(None)]
    assert same_bits(list(found[1:3]), [values["view"], values["transposed"]]) == []
    file, values = ValueFile(), [torch.randn(MANY), torch.randn(2), torch.randn(MANY, 2)[:, 1], 3]
    found = file.moved(capture(values))
    assert size_of(file) > 0 and same_bits(values, found.restore(), stride=True) == []


def test_what_goes_into_the_file() -> None:
    large, small = torch.randn(MANY), torch.randn(MANY - 1)
    sizes = [
        len(stored([[value]], file)[0]) for value, file in ((large, ValueFile()), (large, None), (small, ValueFile()))
    ]
    assert sizes[0] < 100 and sizes[1] >= large.nbytes and sizes[2] >= small.nbytes
    file, value = ValueFile(), torch.randn(MANY)
    (a,) = restored(*stored([[value, torch.randn(MANY)]], file))
    once = size_of(file)
    (b,) = restored(*stored([[value.clone(), torch.randn(MANY)]], file))
    assert size_of(file) == once + LARGE
    assert is_stored_once(a, b, 0) and not is_stored_once(a, b, 1)


def test_contents_that_differ_are_told_apart() -> None:
    """Wherever the bit is: samples of the two may be the same."""
    file, value = ValueFile(), torch.zeros(MANY)
    (a,) = restored(*stored([[value]], file))
    for place in (0, 1000, MANY // 2, MANY - 1):
        other = value.clone()
        other[place] = -0.0
        (b,) = restored(*stored([[other]], file))
        assert not is_stored_once(a, b, 0) and same_bits(other, b[0]) == []
    assert same_bits(value, a[0]) == []
    file, base = ValueFile(), torch.arange(2 * MANY)
    views = [base[:MANY], base[MANY:], base[:MANY].view(2, -1)]
    a, b, c = (restored(*stored([[view]], file))[0] for view in views)
    assert not is_stored_once(a, b, 0) and not is_stored_once(a, c, 0)
    assert same_bits(list(b), [base[MANY:]]) == []


def test_a_value_is_mapped_while_it_is_looked_at_and_writing_to_it_changes_nothing() -> None:
    values, file = [torch.randn(MANY) for _ in range(5)], ValueFile()
    before = mapped()
    (found,) = restored(*stored([values], file))
    assert [mapped() - before for _ in found] == [LARGE] * 5  # one after the other, the one before gone
    found[0].zero_()
    assert same_bits(values[0], found[0]) == []
    assert mapped() == before


def test_children_write_to_the_same_file() -> None:
    file, value = ValueFile(), torch.randn(MANY)
    first = isolated(lambda: stored([[value, torch.full((MANY,), 1.0)]], file)).value
    size = size_of(file)
    file.learn(first[1])
    second = isolated(lambda: stored([[value, torch.full((MANY,), 2.0)]], file)).value
    assert size_of(file) == size + LARGE  # what the first child wrote was known to the second
    (a,), (b,) = restored(*first), restored(*second)
    assert is_stored_once(a, b, 0)
    assert [float(v[0]) for v in (a[1], b[1])] == [1.0, 2.0]


def test_a_file_that_is_full_leaves_values_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(value_file.os, "pwrite", full)
    value = torch.randn(MANY)
    record = stored([[value]], ValueFile())
    assert len(record[0]) >= value.nbytes
    assert same_bits(restored(*record)[0][0], value) == []


def test_copies() -> None:
    file, value = ValueFile(), torch.randint(0, 255, (LARGE,), dtype=torch.uint8)
    a, b = file.copy(value), file.copy(value)
    assert size_of(file) == LARGE
    a.zero_()
    assert torch.equal(b, value) and torch.equal(file.copy(value), value)
    assert file.copy(value[:-1]).numel() == LARGE - 1 and size_of(file) == LARGE  # a small one is in memory
    file, original = ValueFile(), torch.arange(LARGE, dtype=torch.int32).view(torch.uint8)
    copy = file.copy(original)
    size, other, clone = file.size, file.again(copy), file.again(original)
    other += 1
    assert torch.equal(copy, original) and torch.equal(other, original + 1) and file.size == size
    clone += 1
    assert torch.equal(copy, original), "of what is no copy, a clone"


def resident(tensor: torch.Tensor) -> int:
    """KiB of the mapping of a tensor that are in memory."""
    address, found = tensor.untyped_storage().data_ptr(), False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.partition(" ")[0]
        if "-" in head:
            low, _, high = head.partition("-")
            found = int(low, 16) <= address < int(high, 16)
        if found and line.startswith("Rss:"):
            return int(line.split()[1])
    raise AssertionError("it is not mapped")


def test_a_copy_that_is_let_go_of_is_read_again() -> None:
    file, original = ValueFile(), torch.randn(4 * MANY)
    copy = file.copy(original.view(torch.uint8)).view(torch.float32)
    assert torch.equal(copy, original) and resident(copy) > 0
    file.release(copy, original, None, 3)
    assert resident(copy) == 0
    assert torch.equal(copy, original), "what is no copy is left alone, and the copy is as it was"
