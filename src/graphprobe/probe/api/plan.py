"""What an API dump is to hold: its arguments, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from graphprobe.dump_plan.api_options import API_OPTIONS, FILE_SECTION
from graphprobe.errors import SettingError, UsageError
from graphprobe.select import StepSelection, steps_from_text
from graphprobe.settings import Option
from graphprobe.settings.files import section_from_file
from graphprobe.settings.option import only_given
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
