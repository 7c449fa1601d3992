"""`CompilerConfig`: the configuration object that TorchAir users know. Knows nothing of torch."""

from __future__ import annotations

from typing import Any

from graphprobe.errors import SettingError

MODES = ("default", "max-autotune", "max-autotune-no-cudagraphs", "reduce-overhead")
GRAPH_DUMP_TYPES = ("txt", "pbtxt", "py")


class Option:
    """One option: read and set through `.value`, or by assigning to it on its owner."""

    def __init__(self, name: str, allowed: tuple[str, ...], value: str | None) -> None:
        self._name = name
        self._allowed = allowed
        self._value = value

    @property
    def value(self) -> str | None:
        return self._value

    @value.setter
    def value(self, value: str | None) -> None:
        if value is not None and value not in self._allowed:
            raise SettingError(
                f"CompilerConfig().{self._name} = {value!r}", hint=f"expected one of {', '.join(self._allowed)}"
            )
        self._value = value

    def __eq__(self, other: object) -> bool:
        return self._value == (other._value if isinstance(other, Option) else other)

    def __hash__(self) -> int:
        return hash((self._name, self._value))

    def __str__(self) -> str:
        return str(self._value)

    def __repr__(self) -> str:
        return repr(self._value)


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


class CompilerConfig(_Group):
    """What `get_backend` takes.

    `mode`: `default`, `max-autotune`, `max-autotune-no-cudagraphs` or `reduce-overhead`, as in `torch.compile(mode=…)`.
    `debug.graph_dump.type`: `txt`, `pbtxt` or `py`, how the backend's own graphs are written; None as the session says.
    Both are read and set directly or through `.value`.
    """

    mode: Option
    debug: _Group

    def __init__(self) -> None:
        dump = _Group("debug.graph_dump", type=Option("debug.graph_dump.type", GRAPH_DUMP_TYPES, None))
        super().__init__("", mode=Option("mode", MODES, "default"), debug=_Group("debug", graph_dump=dump))
