"""`CompilerConfig`: the configuration object that TorchAir users know. Knows nothing of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from graphprobe.dump_plan import DumpPlan, plan_from
from graphprobe.dump_plan.options import OPTIONS, checked_option
from graphprobe.errors import SettingError

MODES = ("default", "max-autotune", "max-autotune-no-cudagraphs", "reduce-overhead")
GRAPH_DUMP_TYPES = ("txt", "pbtxt", "py")


class Option:
    """One option: read and set through `.value`, or by assigning to it on its owner.

    Setting it to None gives it back its default. `given` is what was set, None if nothing was.
    """

    __slots__ = ("_check", "_default", "_given", "_name")

    def __init__(self, name: str, check: Callable[[str, Any], Any], default: Any) -> None:
        self._name = name
        self._check = check
        self._default = default
        self._given: Any = None

    @property
    def value(self) -> Any:
        return self._default if self._given is None else self._given

    @value.setter
    def value(self, value: Any) -> None:
        self._given = None if value is None else self._check(self._name, value)

    @property
    def given(self) -> Any:
        return self._given

    def __eq__(self, other: object) -> bool:
        return bool(self.value == (other.value if isinstance(other, Option) else other))

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
        if isinstance(member, Option):
            member.value = value.value if isinstance(value, Option) else value
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

    enable_dump: Option
    dump_mode: Option
    dump_path: Option
    quant_dumpable: Option
    dump_step: Option
    dump_layer: Option
    dump_data: Option
    dump_config_path: Option
    engine: Option
    max_bytes: Option
    write_through: Option

    def __init__(self) -> None:
        options = {row.name: Option(f"dump_config.{row.name}", _dump_option, row.default) for row in OPTIONS}
        super().__init__("dump_config", **options)

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

    mode: Option
    debug: _Group
    dump_config: DumpConfig

    def __init__(self) -> None:
        dump = _Group("debug.graph_dump", type=Option("debug.graph_dump.type", _one_of(GRAPH_DUMP_TYPES), None))
        super().__init__(
            "",
            mode=Option("mode", _one_of(MODES), "default"),
            debug=_Group("debug", graph_dump=dump),
            dump_config=DumpConfig(),
        )


def _one_of(allowed: tuple[str, ...]) -> Callable[[str, Any], Any]:
    def check(name: str, value: Any) -> Any:
        if value not in allowed:
            raise SettingError(f"CompilerConfig().{name} = {value!r}", hint=f"expected one of {', '.join(allowed)}")
        return value

    return check


def _dump_option(name: str, value: Any) -> Any:
    return checked_option(name.rpartition(".")[2], value, called=f"CompilerConfig().{name}")
