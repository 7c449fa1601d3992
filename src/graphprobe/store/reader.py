"""A run on disk, read back: no torch, no numpy, and no file is needed but the manifest."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Set
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from graphprobe.errors import ArtifactNotFoundError, GraphprobeError, RunNotFoundError, SchemaError
from graphprobe.faces import ShowsItself
from graphprobe.records import (
    CompileFacts,
    CompilerSettings,
    Direction,
    Event,
    GraphRuns,
    GraphsLine,
    Manifest,
    NodeLine,
    NodeSource,
    NodeTarget,
)
from graphprobe.store import layout
from graphprobe.store.files import read_file, read_or_refuse
from graphprobe.store.layout import addresses_from_events, bare_address, find_address
from graphprobe.store.manifest import DumpedManifest
from graphprobe.store.schema import UNREADABLE, check_version, lines_of, read_manifest

State = Literal["running", "finished", "failed", "killed"]

DumpManifestT = TypeVar("DumpManifestT", bound=DumpedManifest)


def state_of(manifest: Manifest) -> State:
    """As the manifest says; `killed` where it says `running` and the process is gone."""
    if manifest.state == "running" and manifest.host in ("", socket.gethostname()):
        return "running" if is_alive(manifest.pid) else "killed"
    return manifest.state


def manifest_of_dump(folder: Path, form: type[DumpManifestT]) -> DumpManifestT | None:
    """The manifest of a dump of this form right in `folder`; None when there is none, or one of something else.

    Raises:
        SchemaError: it cannot be read, or is of another schema.
    """
    path, (key, known) = folder / layout.MANIFEST, form.version
    try:
        data = read_file(path)
    except OSError:
        return None
    if f'"{key}"'.encode() not in data:
        return None
    document = read_manifest(data, path=str(path))
    check_version(document.get(key), known, path=path, what=f"{form.called.partition(' ')[2]} ")
    try:
        return msgspec.convert(document, form)
    except UNREADABLE as error:
        raise SchemaError(f"{path} is no manifest of {form.called}: {error}") from error


def finds_one(open_it: Callable[[str | Path], object], path: str | Path) -> bool:
    """Whether this way to open a dump finds one at `path`, of whatever schema."""
    try:
        open_it(path)
    except SchemaError:
        return True
    except GraphprobeError:
        return False
    return True


def told_of_dumps(dumps: Iterable[tuple[Path, DumpedManifest | None]]) -> dict[str, None]:
    """What the manifests of dumps in these folders say is missing, which ended before their program did, and why."""
    known = [(folder, manifest) for folder, manifest in dumps if manifest is not None]
    said = {text: None for _, manifest in known for text in manifest.missing}
    for folder, manifest in known:
        if manifest.stopped:
            said[f"{folder}: the dump ended early: {manifest.stopped}; nothing is known of what came after"] = None
        elif state_of(manifest) == "killed":
            said[f"{folder}: the process was killed: the last calls may be missing"] = None
    return said


class Model(msgspec.Struct, frozen=True):
    """One compiled graph with its directions. `compile` is the content of `compile.json`, empty when there is none."""

    number: int
    compile_id: str | None
    compile: dict[str, Any]
    events: tuple[Event, ...]

    def graphs(self) -> dict[str, tuple[Event, ...]]:
        """The events of each graph that has any, in order: of `forward`, or of `piece_1/forward`."""
        found: dict[str, list[Event]] = {}
        for event in self.events:
            if event.where.direction is not None:
                found.setdefault(event.where.graph, []).append(event)
        return {graph: tuple(events) for graph, events in found.items()}


class PassPair(msgspec.Struct, frozen=True):
    """The snapshots around a pass. Where it changed nothing, `after` is `before`."""

    event: Event
    before: Event
    after: Event


class GraphRecords(msgspec.Struct):
    """A `graphs.jsonl`: by path of a text the graphs in it, and the lists that they take their nodes from."""

    graphs: dict[str, tuple[GraphRuns, ...]] = {}
    targets: list[NodeTarget] = []
    sources: list[NodeSource] = []
    nodes: list[NodeLine] = []


class Run(ShowsItself):
    """One run as it stood when it was opened. `problems` says in words what could not be read."""

    def __init__(self, tool_dir: Path) -> None:
        path = tool_dir / layout.MANIFEST
        document = read_manifest(read_or_refuse(path, RunNotFoundError), path=str(path))
        self.tool_dir = tool_dir
        self.run_dir = tool_dir.parent
        self.manifest = msgspec.convert(document, Manifest)
        self.problems: list[str] = []
        self._events: tuple[Event, ...] | None = None
        self._graphs: dict[int, GraphRecords] = {}

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """The run at `path`: a run folder, its graphprobe folder, or a root with runs, of which the newest.

        Raises:
            RunNotFoundError: there is none; the message says what was looked for.
            SchemaError: the manifest is of a newer or an unknown schema.
        """
        path = Path(path)
        for tool_dir in (path, path / layout.TOOL):
            if (tool_dir / layout.MANIFEST).is_file():
                return cls(tool_dir)
        runs = cls.find_all(path) or cls.find_all(path / layout.ROOT)
        if runs:
            return runs[-1]
        if not path.exists():
            raise RunNotFoundError(f"{path} does not exist", hint="collect a run first: graphprobe run script.py")
        raise RunNotFoundError(
            f"no run at {path}: neither {layout.MANIFEST}, nor {layout.TOOL}/{layout.MANIFEST}, "
            f"nor a folder with {layout.TOOL}/{layout.MANIFEST} in it, nor {layout.ROOT}",
            hint="name the run folder, its graphprobe folder, or the folder that holds the runs",
        )

    @classmethod
    def find_all(cls, root: str | Path) -> list[Run]:
        """The runs right under `root`, oldest first. Raises SchemaError only when none of them can be read."""
        found: list[Run] = []
        refused: SchemaError | None = None
        for manifest in Path(root).glob(f"*/{layout.TOOL}/{layout.MANIFEST}"):
            try:
                found.append(cls(manifest.parent))
            except SchemaError as error:
                refused = error
        if refused is not None and not found:
            raise refused
        return sorted(found, key=lambda run: (run.manifest.started_ns, -run.manifest.rank))

    @property
    def has_events(self) -> bool:
        """Whether it is a run: the folder of one process of a dump has a manifest, too, and no events."""
        return (self.tool_dir / layout.EVENTS).is_file()

    @property
    def state(self) -> State:
        """That of the manifest, see `state_of`."""
        return state_of(self.manifest)

    def events(self) -> tuple[Event, ...]:
        """Every event line that can be read, in order; what cannot is told in `problems`."""
        if self._events is None:
            self._events = tuple(self._read_events())
        return self._events

    def models(self) -> tuple[Model, ...]:
        """The models, by number."""
        by_number: dict[int, list[Event]] = {}
        for event in self.events():
            if event.where.model is not None:
                by_number.setdefault(event.where.model, []).append(event)
        return tuple(self._model(number, by_number[number]) for number in sorted(by_number))

    def compiler_settings(self) -> dict[str, str] | None:
        """The settings of torch's compilers by name; None where the run has none, or where `problems` says why."""
        try:
            data = read_file(self.tool_dir / layout.COMPILER_SETTINGS, below=self.tool_dir)
            return msgspec.json.decode(data, type=CompilerSettings).settings
        except FileNotFoundError:
            return None
        except (OSError, *UNREADABLE) as error:
            self.problems.append(f"{layout.COMPILER_SETTINGS} cannot be read: {error}")
            return None

    def artifacts(self) -> dict[str, Event]:
        """Every event that has a file, by address."""
        return addresses_from_events(self.events())

    def find(self, address: str) -> Event:
        """The artifact that `address` means: see `find_address`.

        Raises:
            ArtifactNotFoundError: none, or more than one; or a pass that changed nothing and so left no file.
        """
        artifacts = self.artifacts()
        try:
            return artifacts[find_address(address, artifacts)]
        except ArtifactNotFoundError as error:
            wanted = address.strip("/")
            same = [e for e in self.events() if bare_address(e) == wanted or bare_address(e).endswith("/" + wanted)]
            if same and all(event.kind == "pass" and event.path is None for event in same):
                why = "changed nothing" if not any(event.changed for event in same) else "has no file"
                raise ArtifactNotFoundError(
                    f"the pass of {bare_address(same[0])} ran and {why}", hint=error.hint
                ) from error
            raise

    def text(self, event: Event) -> str:
        """The content of the event's file; bytes that are no UTF-8 are shown as escapes.

        Raises:
            ArtifactNotFoundError: the event has no file, or it is gone.
        """
        return self.content(event).decode("utf-8", "backslashreplace")

    def content(self, event: Event) -> bytes:
        """The same, as bytes."""
        if event.path is None:
            raise ArtifactNotFoundError(f"event {event.seq} ({event.name}) has no file")
        path = self.tool_dir / event.path
        if not path.resolve().is_relative_to(self.tool_dir.resolve()):
            raise ArtifactNotFoundError(f"event {event.seq} names {event.path}, which lies outside the run")
        return read_or_refuse(path, ArtifactNotFoundError)

    def graph_records(self, event: Event) -> tuple[tuple[GraphRuns, ...], GraphRecords] | None:
        """The graphs that the event's file shows, and where their nodes stand; None where the run has no records."""
        model = event.where.model
        if model is None or event.path is None:
            return None
        if model not in self._graphs:
            self._graphs[model] = self._read_graphs(layout.graphs_file(model))
        graphs = self._graphs[model].graphs.get(event.path)
        return None if graphs is None else (graphs, self._graphs[model])

    def size_bytes(self, event: Event) -> int | None:
        """The size of the event's file: as written, or as it lies there for one that is rewritten; None without one."""
        if event.path is None or event.size_bytes is not None:
            return event.size_bytes
        try:
            return (self.tool_dir / event.path).stat().st_size
        except OSError:
            return None

    def before_and_after(
        self, pass_name: str, *, model: int | None = None, direction: Direction | None = None
    ) -> PassPair:
        """The snapshots around a pass; the one before is the last of the same graph, or the graph itself.

        `pass_name` may end in `#2` for the second run of the pass within what `model` and `direction` leave.

        Raises:
            ArtifactNotFoundError: no such pass, several of them, one that raised, or no snapshot before it.
        """
        found = self._find_passes(pass_name, model, direction)
        if len(found) == 1:
            return self._around(found[0][1])
        where = [f"{bare_address(event)} (#{number})" for number, event in found]
        raise ArtifactNotFoundError(
            f"pass {pass_name!r} changed the graph {len(found)} times: {', '.join(where)}",
            hint=f"say which with --model and --direction, or --pass '{pass_name}#{found[0][0]}'",
        )

    def changes(
        self, pass_name: str | None = None, *, model: int | None = None, direction: Direction | None = None
    ) -> list[PassPair]:
        """The snapshots around every pass that changed a graph, or around each change by the pass of that name.

        Raises:
            ArtifactNotFoundError: as `before_and_after`, except where there are several.
        """
        if pass_name is not None:
            return [self._around(event) for _, event in self._find_passes(pass_name, model, direction)]
        found = self._events_of({"pass"}, model, direction)
        return [self._around(event) for event in found if event.path is not None]

    def _events_of(self, kinds: Set[str], model: int | None, direction: Direction | None) -> list[Event]:
        return [
            event
            for event in self.events()
            if event.kind in kinds and model in (None, event.where.model) and direction in (None, event.where.direction)
        ]

    def _around(self, event: Event) -> PassPair:
        address = bare_address(event)
        if event.kind == "failure":
            raise ArtifactNotFoundError(
                f"the pass of {address} raised, so there is no graph after it", hint=f"graphprobe show RUN {address}"
            )
        before: Event | None = None
        for earlier in self.events():
            if earlier.seq >= event.seq or earlier.path is None or earlier.kind not in ("graph", "pass"):
                continue
            # A pass may hold others inside: what lay before it is not what was written last before its own file.
            if earlier.path == event.before or (event.before is None and _is_snapshot_of(earlier, event)):
                before = earlier
        if before is None:
            raise ArtifactNotFoundError(f"no graph was kept from before the pass of {address}")
        if event.path is None and event.changed is not False:
            raise ArtifactNotFoundError(
                f"the pass of {address} changed the graph, but its file was not written",
                hint="; ".join(self.manifest.missing),
            )
        return PassPair(event=event, before=before, after=before if event.path is None else event)

    def _read_events(self) -> Iterator[Event]:
        path, decoder, expected = self.tool_dir / layout.EVENTS, msgspec.json.Decoder(Event), 0
        lines = lines_of(path, decoder, tell=self.problems.append, name=layout.EVENTS, noun="event")
        for number, _, event in lines:
            if event.seq != expected:
                self.problems.append(f"{layout.EVENTS} line {number} has seq {event.seq}, expected {expected}")
            expected = event.seq + 1
            yield event

    def _read_graphs(self, name: str) -> GraphRecords:
        """All lines up to the first that cannot be read, since what follows counts on it."""
        found = GraphRecords()
        try:
            lines = read_file(self.tool_dir / name, below=self.tool_dir).split(b"\n")
        except OSError:
            return found
        for number, data in enumerate(filter(None, lines), start=1):
            try:
                line = msgspec.json.decode(data, type=GraphsLine)
            except UNREADABLE as error:
                self.problems.append(f"{name} line {number} cannot be read, nor what follows: {error}")
                break
            found.targets += line.targets
            found.sources += line.sources
            found.nodes += line.nodes
            ends = [first + count for graph in line.graphs for first, count in graph.nodes]
            ends += [sum(count for _, count in graph.nodes) for graph in line.graphs]  # none has a node twice
            targets = [node.target + 1 for node in line.nodes]
            sources = [node.source + 1 for node in line.nodes if node.source is not None]
            held = ((ends, found.nodes), (targets, found.targets), (sources, found.sources))
            if any(max(numbers, default=0) > len(listed) for numbers, listed in held):
                self.problems.append(f"{name} line {number} refers to what is not there, and so does what follows")
                break
            found.graphs[line.path] = line.graphs
        return found

    def _model(self, number: int, events: list[Event]) -> Model:
        content: dict[str, Any] = {}
        last = [event for event in events if event.kind == "compile" and event.path is not None][-1:]
        for event in last:
            try:
                content = msgspec.json.decode(self.content(event), type=dict[str, Any])
                msgspec.convert(content, CompileFacts)
            except (ArtifactNotFoundError, *UNREADABLE) as error:
                content = {}
                problem = f"{event.path} cannot be read: {error}"
                if problem not in self.problems:
                    self.problems.append(problem)
        compile_id = next((event.where.compile_id for event in events if event.where.compile_id is not None), None)
        return Model(number=number, compile_id=compile_id, compile=content, events=tuple(events))

    def _find_passes(self, pass_name: str, model: int | None, direction: Direction | None) -> list[tuple[int, Event]]:
        """Each run of the pass that changed the graph, with its number; of several that changed nothing, the first."""
        bare, _, turn = pass_name.rpartition("#") if pass_name.rpartition("#")[2].isdigit() else (pass_name, "", "")
        ran = self._events_of({"pass", "failure"}, model, direction)
        models = [one.number for one in self.models()]
        if model is not None and model not in models:
            known = ", ".join(map(str, models)) or "none"
            raise ArtifactNotFoundError(f"the run has no model {model}", hint=f"its models: {known}")
        if not ran:
            raise ArtifactNotFoundError(f"no pass {bare!r} ran there", hint="no pass at all was recorded there")
        named = [event for event in ran if (event.where.pass_name or event.name) == bare]
        if turn and 1 <= int(turn) <= len(named):
            return [(int(turn), named[int(turn) - 1])]
        # Of several, those that did something are meant; if exactly one did, that one.
        candidates = [event for event in named if event.changed is not False] or named[:1]
        if candidates and not turn:
            return [(named.index(event) + 1, event) for event in candidates]
        if named and turn:
            raise ArtifactNotFoundError(f"pass {bare!r} ran {len(named)} times there, so there is no #{turn}")
        names = {f"after:{event.where.pass_name or event.name}": event for event in ran}
        try:
            find_address(f"after:{bare}", names)
        except ArtifactNotFoundError as error:
            hint = error.hint.replace("after:", "")
            raise ArtifactNotFoundError(f"no pass {bare!r} ran there", hint=hint) from None
        raise ArtifactNotFoundError(f"no pass {bare!r} ran there")


def _is_snapshot_of(earlier: Event, event: Event) -> bool:
    ours, theirs = event.where, earlier.where
    if theirs.model != ours.model:
        return False
    if theirs.graph == ours.graph:
        return theirs.subgraph == ours.subgraph
    # The graph that Dynamo handed over is what the first pass before AOT gets.
    return ours.direction == "pre_grad" and theirs.direction is None and ours.subgraph is None


def is_alive(pid: int) -> bool:
    """Whether the process runs on this machine. A zombie is dead; another's process is alive."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    try:
        # The state follows the command, which stands in brackets and may hold brackets itself.
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (OSError, IndexError):
        return True
