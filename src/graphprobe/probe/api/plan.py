"""What an API dump is to hold, checked before anything runs: which calls, by API, label, range and step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from graphprobe.dump_plan.options import API_OPTIONS, FILE_SECTION
from graphprobe.errors import SettingError, UsageError
from graphprobe.probe.api.api_names import matches
from graphprobe.select import StepSelection, steps_from_text
from graphprobe.settings import Option
from graphprobe.settings.option import only_given, section_from_file
from graphprobe.store.api_records import DumpData, DumpLevel, DumpMode

OptimizerRecords = Literal["step", "state", "calls", "off"]
StepAt = Literal["optimizer", "hand"]


class ApiPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `graphprobe.dump`, checked; see there.

    Attributes:
        steps: None: all.
        apis: names and globs; empty: all.
        scope: labels of calls.
    """

    path: str
    data: DumpData = "stats"
    level: DumpLevel = "api"
    mode: DumpMode = "all"
    scope: tuple[str, ...] = ()
    steps: StepSelection | None = None
    apis: tuple[str, ...] = ()
    sample: int | None = None
    stack: bool = False
    optimizer: OptimizerRecords = "step"
    step_at: StepAt = "optimizer"
    budget_bytes: int | None = None

    def as_document(self) -> dict[str, Any]:
        """JSON for the manifest."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document | {"steps": None if self.steps is None else str(self.steps)}


def plan_from_arguments(arguments: Mapping[str, Any]) -> ApiPlan:
    """The plan that the arguments of `graphprobe.dump` describe; None stands for the default.

    Raises:
        UsageError: an argument does not exist or has a value that it cannot take, or two exclude each other.
    """
    given = only_given(API_OPTIONS, arguments, "argument", "option of a dump")
    if "path" not in given:
        raise UsageError("path is missing: a dump needs a folder to be written to")
    values = {row.name: _taken(row, given[row.name]) for row in API_OPTIONS if row.name in given}
    values |= {name: tuple(one.strip() for one in values[name]) for name in ("scope", "apis") if name in values}
    if "steps" in values:
        values["steps"] = steps_from_text(values["steps"])
    plan = ApiPlan(**{**values, "stack": values.get("stack", False) or values.get("mode") == "stack"})
    _check_together(plan, given)
    return plan


def arguments_from_file(path: str | Path) -> dict[str, Any]:
    """The arguments in a JSON file `{"api_dump": {...}}`, unchecked but for their names.

    Raises:
        UsageError: the file cannot be read, or is not such a document.
    """
    return section_from_file(path, FILE_SECTION, ApiPlan.__struct_fields__, called="config", alone=False)


def _taken(row: Option, value: Any) -> Any:
    if row.type == "steps" and isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    kept = row.converted(value)
    if kept is None:
        raise SettingError(f"{row.name}={value!r}: expected {row.accepted()}")
    return kept


def _check_together(plan: ApiPlan, given: Mapping[str, Any]) -> None:
    if plan.mode == "all" and plan.scope:
        raise UsageError(
            f"scope={list(plan.scope)!r} with mode='all', which takes every call",
            hint="mode='list' takes just these calls, mode='range' those from the first to the second",
        )
    if plan.mode == "list" and not plan.scope:
        raise UsageError("mode='list' needs scope: the labels of the calls", hint="scope=['Tensor.add.3', 'relu.0']")
    if plan.mode == "range" and len(plan.scope) != 2:
        raise UsageError(
            f"mode='range' needs two labels in scope, the first call and the last; there are {len(plan.scope)}"
        )
    if plan.mode == "stack" and len(plan.scope) not in (0, 2):
        raise UsageError(
            f"mode='stack' takes the first and the last call in scope, or nothing; there are {len(plan.scope)}"
        )
    if plan.sample is not None and plan.data != "tensor":
        raise UsageError(f"sample={plan.sample} with data={plan.data!r}, which keeps no values", hint="data='tensor'")
    if plan.mode == "stack" and given.get("data") == "tensor":
        raise UsageError("data='tensor' with mode='stack', which keeps no values", hint="mode='range' with stack=True")


class CallSelection:
    """Decides for each call, in the order in which they begin.

    Labels are written with or without their direction; a backward belongs to its forward.
    """

    def __init__(self, plan: ApiPlan) -> None:
        self._apis = plan.apis
        self._list = plan.scope if plan.mode == "list" else ()
        self._range = plan.scope if plan.mode in ("range", "stack") and plan.scope else ()
        self._by_api: dict[str, bool] = {}
        self._open = not self._range
        self._met: set[str] = set()
        self.everything = not (self._apis or self._list or self._range)

    def wants(self, label: str, api: str, names: tuple[str, ...]) -> bool:
        """Whether a call is kept.

        Args:
            label: without its direction.
            api: of the call.
            names: what else the API may be called.
        """
        if self.everything:
            return True
        wanted = self._by_api.get(api)
        if wanted is None:
            wanted = self._by_api[api] = not self._apis or matches(self._apis, names)
        if self._range and not self._in_range(label):
            return False
        if self._list:
            found = [name for name in self._list if matches((bare(name),), (label,)) or matches((name,), names)]
            self._met.update(found)
            return wanted and bool(found)
        return wanted

    def unmet(self) -> list[str]:
        """Entries of the scope that no call had, in words."""
        if self._list:
            return [f"no call was {name}" for name in self._list if name not in self._met]
        told = ("the first call of the range", "the last call of the range")
        return [
            f"{what}, {name}, never came"
            for what, name in zip(told, self._range, strict=False)
            if name not in self._met
        ]

    def _in_range(self, label: str) -> bool:
        first, last = self._range
        if not self._open and first not in self._met and matches((bare(first),), (label,)):
            self._met.add(first)
            self._open = True
        inside = self._open
        if inside and matches((bare(last),), (label,)):
            self._met.add(last)
            self._open = False
        return inside


def bare(label: str) -> str:
    """A label without its direction."""
    return label.removesuffix(".forward").removesuffix(".backward")
