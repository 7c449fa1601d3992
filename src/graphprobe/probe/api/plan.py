"""What an API dump is to hold: its arguments, checked before anything runs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from graphprobe.errors import UsageError
from graphprobe.select import StepSelection, steps_from_text
from graphprobe.settings import size_from_text
from graphprobe.store.api_records import DumpData, DumpLevel, DumpMode
from graphprobe.store.files import read_file

OptimizerRecords = Literal["step", "state", "calls", "off"]
StepAt = Literal["optimizer", "hand"]

CHOICES: dict[str, tuple[str, ...]] = {
    "data": ("stats", "tensor"),
    "level": ("api", "module", "mix"),
    "mode": ("all", "list", "range", "stack"),
    "optimizer": ("step", "state", "calls", "off"),
    "step_at": ("optimizer", "hand"),
}
MAX_SAMPLE = 1_000_000
MAX_FILE_BYTES = 1 << 20


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


FIELDS = ApiPlan.__struct_fields__


def plan_from_arguments(arguments: Mapping[str, Any]) -> ApiPlan:
    """The plan that the arguments of `graphprobe.dump` describe; None stands for the default.

    Raises:
        UsageError: an argument has a value that it cannot take, or two exclude each other.
        SettingError: `steps` is not written as steps are.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    unknown = sorted(set(given) - set(FIELDS))
    if unknown:
        raise UsageError(f"{unknown[0]!r} is no argument of a dump", hint=f"known: {', '.join(FIELDS)}")
    if "path" not in given:
        raise UsageError("path is missing: a dump needs a folder to be written to")
    path = given["path"]
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise UsageError(f"path={path!r}: expected the name of a folder")
    for name, choices in CHOICES.items():
        if given.get(name, choices[0]) not in choices:
            raise UsageError(f"{name}={given[name]!r}: expected one of {', '.join(map(repr, choices))}")
    if not isinstance(given.get("stack", False), bool):
        raise UsageError(f"stack={given['stack']!r}: expected True or False")
    plan = ApiPlan(
        path=str(path),
        data=given.get("data", "stats"),
        level=given.get("level", "api"),
        mode=given.get("mode", "all"),
        scope=_names("scope", given.get("scope", ())),
        steps=_steps(given.get("steps")),
        apis=_names("apis", given.get("apis", ())),
        sample=_number("sample", given.get("sample"), MAX_SAMPLE),
        stack=given.get("stack", False) or given.get("mode") == "stack",
        optimizer=given.get("optimizer", "step"),
        step_at=given.get("step_at", "optimizer"),
        budget_bytes=_bytes(given.get("budget_bytes")),
    )
    _check_together(plan, given)
    return plan


def arguments_from_file(path: str | Path) -> dict[str, Any]:
    """The arguments in a JSON file `{"api_dump": {...}}`, unchecked but for their names.

    Raises:
        UsageError: the file cannot be read, or is not such a document.
    """
    try:
        data = read_file(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise UsageError(f"{path} has {len(data)} bytes; a file of settings has at most {MAX_FILE_BYTES}")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON: {error}") from error
    found = document.get("api_dump") if isinstance(document, dict) else None
    if not isinstance(found, dict):
        raise UsageError(f"{path} has no object 'api_dump'", hint='{"api_dump": {"path": "out", "data": "stats"}}')
    unknown = sorted(set(found) - set(FIELDS))
    if unknown:
        raise UsageError(f"{path}: {unknown[0]!r} is no key of 'api_dump'", hint=f"known: {', '.join(FIELDS)}")
    return cast(dict[str, Any], found)


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


def _names(name: str, value: Any) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not all(isinstance(one, str) and one.strip() for one in names):
        raise UsageError(f"{name}={value!r}: expected names, as a list of texts")
    return tuple(one.strip() for one in names)


def _steps(value: Any) -> StepSelection | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise UsageError(f"steps={value!r}: expected a text such as '0|3-5|10', or a number")
    return steps_from_text(str(value))


def _number(name: str, value: Any, largest: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
        raise UsageError(f"{name}={value!r}: expected a whole number from 1 to {largest}")
    return value


def _bytes(value: Any) -> int | None:
    if value is None:
        return None
    size_bytes = size_from_text(value) if isinstance(value, str) else value
    if isinstance(size_bytes, bool) or not isinstance(size_bytes, int) or size_bytes < 1:
        raise UsageError(f"budget_bytes={value!r}: expected a number of bytes, 1 or more", hint="or a text: '500MB'")
    return size_bytes
