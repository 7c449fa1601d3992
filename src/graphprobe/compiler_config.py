"""`CompilerConfig`: the configuration object that TorchAir users know. Knows nothing of torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphprobe.dump_plan import DumpPlan, plan_from
from graphprobe.dump_plan.options import OPTIONS, checked_option
from graphprobe.errors import SettingError
from graphprobe.settings import BY_NAME as SETTINGS
from graphprobe.settings import Option

MODES = ("default", "max-autotune", "max-autotune-no-cudagraphs", "reduce-overhead")
_MODE = Option("mode", "choice", "default", allowed=MODES)
_GRAPH_DUMP = Option("type", "choice", allowed=SETTINGS["graph_dump"].allowed)


class OptionValue:
    """The value of one option: read and set through `.value`, or by assigning to it on its owner.

    Setting it to None gives it back its default. `given` is what was set, None if nothing was.
    """

    __slots__ = ("_given", "_name", "_row")

    def __init__(self, row: Option, group: str = "") -> None:
        self._row = row
        self._name = f"{group}{row.name}"
        self._given: Any = None

    @property
    def value(self) -> Any:
        return self._row.default if self._given is None else self._given

    @value.setter
    def value(self, value: Any) -> None:
        called = f"CompilerConfig().{self._name}"
        self._given = None if value is None else checked_option(self._row, value, called=called)

    @property
    def given(self) -> Any:
        return self._given

    def __eq__(self, other: object) -> bool:
        return bool(self.value == (other.value if isinstance(other, OptionValue) else other))

    def __hash__(self) -> int:
        return hash((self._name, self.value))

    def __bool__(self) -> bool:
        return bool(self.value)

    def __str__(self) -> str:
        return str(self.value)

    def __repr__(self) -> str:
        return repr(self.value)


class _Group:
    """A fixed set of options and groups: a misspelt name is an error, not a new attribute."""

    _path: str

    def __init__(self, path: str, **members: Any) -> None:
        object.__setattr__(self, "_path", path)
        for name, member in members.items():
            object.__setattr__(self, name, member)

    def __setattr__(self, name: str, value: Any) -> None:
        member = vars(self).get(name)
        if isinstance(member, OptionValue):
            member.value = value.value if isinstance(value, OptionValue) else value
            return
        path = f"{self._path}.{name}" if self._path else name
        if isinstance(member, _Group):
            raise SettingError(f"CompilerConfig().{path} is a group of options", hint=f"it has {_members(member)}")
        raise SettingError(f"CompilerConfig().{path} does not exist", hint=f"there is {_members(self)}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        path = f"{self._path}.{name}" if self._path else name
        raise SettingError(f"CompilerConfig().{path} does not exist", hint=f"there is {_members(self)}")


def _members(group: _Group) -> str:
    return ", ".join(name for name in vars(group) if not name.startswith("_"))


class DumpConfig(_Group):
    """What is dumped of the ops' inputs and outputs, see docs/dump_config.md; `plan` is what comes of it."""

    enable_dump: OptionValue
    dump_mode: OptionValue
    dump_path: OptionValue
    quant_dumpable: OptionValue
    dump_step: OptionValue
    dump_layer: OptionValue
    dump_data: OptionValue
    dump_config_path: OptionValue
    engine: OptionValue
    max_bytes: OptionValue
    write_through: OptionValue

    def __init__(self) -> None:
        super().__init__("dump_config", **{row.name: OptionValue(row, "dump_config.") for row in OPTIONS})

    def plan(self, *, environ: Mapping[str, str], context: Mapping[str, object] | None = None) -> DumpPlan:
        """The plan by these options, `context`, the JSON file and `environ`, in this order of precedence.

        Raises:
            SettingError: a value that cannot be taken; DumpConfigError, which is one, for the file and for conflicts.
        """
        options = {row.name: vars(self)[row.name].given for row in OPTIONS}
        return plan_from(options=options, context=context, environ=environ)


class CompilerConfig(_Group):
    """What `get_backend` takes.

    `mode`: `default`, `max-autotune`, `max-autotune-no-cudagraphs` or `reduce-overhead`, as in `torch.compile(mode=…)`.
    `debug.graph_dump.type`: `txt`, `pbtxt` or `py`, how the backend's own graphs are written; None as the session says.
    `dump_config`: the dump of ops, see `DumpConfig`.
    All are read and set directly or through `.value`.
    """

    mode: OptionValue
    debug: _Group
    dump_config: DumpConfig

    def __init__(self) -> None:
        dump = _Group("debug.graph_dump", type=OptionValue(_GRAPH_DUMP, "debug.graph_dump."))
        debug = _Group("debug", graph_dump=dump)
        super().__init__("", mode=OptionValue(_MODE), debug=debug, dump_config=DumpConfig())
