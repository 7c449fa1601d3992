"""A dump of a piece of program, read back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import graphprobe
from graphprobe.store import Call, CallDump, CallSlot, open_api_dump


class Read:
    """What a dump has, by label."""

    def __init__(self, dump: CallDump) -> None:
        self.dump = dump
        self.by_step = {step: list(dump.calls(0, step)) for step in dump.steps(0)}

    @property
    def calls(self) -> list[Call]:
        return [call for calls in self.by_step.values() for call in calls]

    @property
    def labels(self) -> list[str]:
        return [call.label for call in self.calls]

    @property
    def forward(self) -> list[str]:
        return [call.label for call in self.calls if call.direction == "forward"]

    @property
    def notes(self) -> list[str]:
        return list(self.dump.by_rank[0].manifest.notes)

    def __getitem__(self, label: str) -> Call:
        (found,) = [call for call in self.calls if call.label == label]
        return found

    def slots(self, label: str) -> dict[str, CallSlot]:
        return {slot.name: slot for slot in self[label].slots}

    def value(self, label: str, slot: str) -> Any:
        return self.dump.values(self[label], self.slots(label)[slot])

    def assert_values(self, expected: dict[tuple[str, str], list[Any]]) -> None:
        """By the label of a call in the forward and the name of its slot."""
        for (label, slot), values in expected.items():
            assert self.value(f"{label}.forward", slot).tolist() == values, (label, slot)


@pytest.fixture
def dumped(tmp_path: Path) -> Callable[..., Read]:
    """Runs a function under `graphprobe.dump` and reads what it left."""

    def run(program: Callable[..., Any], *, data: str = "tensor", clean: bool = True, **options: Any) -> Read:
        folder = tmp_path / f"dump{len(list(tmp_path.iterdir()))}"
        with graphprobe.dump(folder, data=data, **options):
            program()
        read = Read(open_api_dump(folder))
        if clean:
            assert read.dump.problems() == ()
        return read

    return run
