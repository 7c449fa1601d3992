"""`plan_from`: options, JSON file and environment become one `DumpPlan`, or an error before anything runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from graphprobe.dump_plan.document import DUMP, Given, read_document, refuse_conflicts
from graphprobe.dump_plan.options import BY_NAME, OPTIONS, checked_option, directory_fault, path_hint
from graphprobe.dump_plan.plan import DumpPlan, ModelEntry, model_entries, watch_entries
from graphprobe.dump_plan.shapes import JsonPlace, shown, value_fault
from graphprobe.errors import SettingError
from graphprobe.records import STATISTICS
from graphprobe.select import layers_from_list, layers_from_text, steps_from_text
from graphprobe.settings.option import from_environment, only_given

FILE_ONLY = tuple(key for key in DUMP.keys if key not in BY_NAME)
"""Settings that are keys of the JSON file and no options."""


def plan_from(
    *,
    options: Mapping[str, object] | None = None,
    context: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    spelled: Mapping[str, str] | None = None,
    in_run: bool = False,
) -> DumpPlan:
    """The plan in force. Precedence: options, context, the JSON file, environment, default.

    Args:
        options: values of the call by option name (the table is `dump_plan.options.OPTIONS`); None is "not given".
        context: the same, of an enclosing context manager.
        environ: environment variables; an empty one counts as unset.
        spelled: what the user knows an option by, for messages, e.g. `--steps`; else `dump_config.dump_step`.
        in_run: where no `dump_path` is given, the caller sets one later: the working directory is not looked at.

    Raises:
        SettingError: an option that does not exist, or a value that it cannot take.
        DumpConfigError: the JSON file is wrong, or settings exclude each other. It is a SettingError, too.
    """
    by_hand = _by_hand(context or {}, "context", {}) | _by_hand(options or {}, "argument", spelled or {})
    by_env = _by_environment(environ or {})
    config = (by_env | by_hand).get("dump_config_path")
    in_file = {} if config is None else _from_file(str(config.value))
    file = "" if config is None else str(config.value)
    # What is wrong in the file is refused even where an option would win: it is wrong for every later call.
    refuse_conflicts(by_env | by_hand | in_file, file=file)
    given = by_env | in_file | by_hand
    warnings = _overridden(given, in_file, by_hand)
    refuse_conflicts(given, file=file)
    plan = _plan(given, file, in_run=in_run)
    return msgspec.structs.replace(plan, warnings=(*warnings, *_without_effect(plan, given)))


def _by_hand(values: Mapping[str, object], source: str, spelled: Mapping[str, str]) -> dict[str, Given]:
    given = only_given(OPTIONS, values, source, "option of a dump")
    usual = "dump_config.{}" if source == "argument" else f"{source} {{}}"
    return {name: _checked(name, value, spelled.get(name, usual.format(name)), source) for name, value in given.items()}


def _by_environment(environ: Mapping[str, str]) -> dict[str, Given]:
    return {
        name: _checked(name, text, f"environment variable {BY_NAME[name].env}", source)
        for name, (text, source) in from_environment(OPTIONS, environ).items()
    }


def _checked(name: str, value: object, called: str, source: str) -> Given:
    kept = checked_option(BY_NAME[name], value, called=called, from_text=source.startswith("env:"), touch=False)
    return Given(kept, called, source)


def _from_file(path: str) -> dict[str, Given]:
    return {key: Given(value, f"$.dump.{key}", f"file:{path}") for key, value in read_document(path).items()}


def _overridden(given: dict[str, Given], in_file: Mapping[str, Given], by_hand: Mapping[str, Given]) -> list[str]:
    """Takes out of `given` what an option overrides under another name, and says what lost against what."""
    pairs = [(by_hand[row.name], in_file[row.name]) for row in OPTIONS if row.name in by_hand and row.name in in_file]
    warnings = [
        f"{one.called} = {shown(one.value)} wins over {other.called} = {shown(other.value)}"
        for one, other in pairs
        if one.value != other.value
    ]
    if "dump_data" in by_hand and by_hand["dump_data"].value != "stats" and "dump_stats" in in_file:
        warnings.append(f"{given.pop('dump_stats').called} has no effect: {by_hand['dump_data'].called} wins")
    watches = "dump_scene" in in_file and in_file["dump_scene"].value == "watcher"
    if "dump_layer" in given and "dump_list" in in_file and not watches:
        winner, loser = ("dump_layer", "dump_list") if "dump_layer" in by_hand else ("dump_list", "dump_layer")
        if given[loser].value:
            warnings.append(f"{given[winner].called} wins over {given[loser].called}")
        del given[loser]
    return warnings


def _plan(given: Mapping[str, Given], file: str, *, in_run: bool) -> DumpPlan:
    def value(key: str) -> Any:
        default = BY_NAME[key].default if key in BY_NAME else None
        return given[key].value if key in given else default

    watch = watch_entries(value("dump_list")) if value("dump_scene") == "watcher" else ()
    overflow, exceptions = value("dump_debug") == "on", value("dump_scene") == "exception"
    sources = {key: given[key].source if key in given else "default" for key in (*BY_NAME, *FILE_ONLY)}
    if watch and "dump_mode" not in given:
        sources["dump_mode"] = sources["dump_scene"]
    stats = value("dump_stats")
    return DumpPlan(
        enabled=value("enable_dump"),
        engine=value("engine"),
        mode="output" if watch else value("dump_mode"),
        data=value("dump_data"),
        stats=tuple(name for name in STATISTICS if stats is None or name in stats),
        path=_path(given.get("dump_path"), file, touch=value("enable_dump"), in_run=in_run),
        steps=None if value("dump_step") is None else steps_from_text(value("dump_step")),
        models=_models(given, watches=bool(watch), others=overflow or exceptions),
        watch=watch,
        overflow=overflow,
        exceptions=exceptions,
        single_ops=value("dump_op_switch") == "on",
        quant_dumpable=value("quant_dumpable"),
        max_bytes=value("max_bytes"),
        write_through=value("write_through"),
        config_path=os.path.abspath(file) if file else None,
        sources=sources,
        warnings=(),
    )


def _models(given: Mapping[str, Given], *, watches: bool, others: bool) -> tuple[ModelEntry, ...]:
    """What is dumped of models; without a word on them everything, unless another kind of dump is asked for."""
    if "dump_layer" in given:
        wanted = given["dump_layer"].value
        layers = layers_from_text(wanted) if isinstance(wanted, str) else layers_from_list(wanted)
        return (ModelEntry(layers=layers, where=given["dump_layer"].called),)
    if "dump_list" in given and not watches:
        return model_entries(given["dump_list"].value)
    return () if watches or others else (ModelEntry(),)


def _path(given: Given | None, file: str, *, touch: bool, in_run: bool) -> str:
    """The folder, absolute; it is looked at only if something is to be written there."""
    if given is None and in_run:
        return ""
    path = given.value if given else "."
    try:
        absolute = os.path.abspath(path)
    except OSError as error:
        raise SettingError(f"the working directory is gone: {error.strerror}", hint="set dump_path") from error
    fault = directory_fault(absolute) if touch else None
    if fault is None:
        return absolute
    hint = path_hint(path, "directory")
    if given is None:
        raise SettingError(f"dump_path is the working directory, {absolute!r}: {fault}", hint="set dump_path")
    if given.source.startswith("file:"):
        raise value_fault(JsonPlace(file, given.called), f"is {shown(path)}: {fault}", hint=hint)
    raise SettingError(f"{given.called} = {shown(path)}: {fault}", hint=hint)


def _without_effect(plan: DumpPlan, given: Mapping[str, Given]) -> list[str]:
    """Settings that change nothing, each with the reason."""
    if not plan.enabled:
        idle = [setting.called for key, setting in given.items() if key != "enable_dump"]
        return [f"nothing is dumped: enable_dump is not True, though {', '.join(idle)} is set"] if idle else []
    warnings = _kept_whole(plan, given) if plan.overflow or plan.exceptions else []
    if not (plan.models or plan.watch or plan.overflow or plan.exceptions or plan.single_ops):
        warnings.append(f"nothing is dumped: {given['dump_list'].called} is empty; left out, it is every model")
    return warnings + [
        f"{entry.where}: {item.pattern!r} is blacklisted without pos, so it is left out whole"
        for entry in plan.models
        for item in entry.blacklist
        if not item.positions
    ]


def _kept_whole(plan: DumpPlan, given: Mapping[str, Given]) -> list[str]:
    if plan.models or plan.single_ops:
        return []
    why = given["dump_debug" if plan.overflow else "dump_scene"].called
    usual = {"dump_mode": "all", "dump_data": "tensor", "dump_stats": None}
    idle = [given[key].called for key in usual if key in given and given[key].value != usual[key]]
    return [f"{called} has no effect: {why} keeps an op's values whole" for called in idle]
