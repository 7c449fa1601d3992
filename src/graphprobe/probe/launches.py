"""`captured_ops.json`: what a compiled graph launched, in the order in which it ran, as a Chrome trace."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from graphprobe.export.trace_events import document, lasting, named
from graphprobe.internals.ir.records import IRNode
from graphprobe.internals.launches.launches import Launch, LaunchTap
from graphprobe.internals.unseen import unseen
from graphprobe.probe.links import nodes_by_launch
from graphprobe.records import Where
from graphprobe.store import layout
from graphprobe.store.writer import RunWriter

MAX_CALLS = 4
"""CUDA graphs are captured on the second call or later; after this many calls without a capture, none is coming."""

FROM_WRAPPER = "launches of the compiled wrapper, in the order in which they ran"
FROM_CAPTURE = "launches of the compiled wrapper while the stream was captured into a CUDA graph"


class LaunchRecorder:
    """Records the first call of one compiled graph, and on CUDA the call during which its graph is captured."""

    def __init__(
        self,
        writer: RunWriter,
        where: Where,
        tap: LaunchTap,
        nodes: Sequence[IRNode],
        cuda: bool,
        failed: Callable[[str, BaseException], None],
    ) -> None:
        """`nodes` are the scheduler's after fusion, for the way back from a launch to the source."""
        self._writer = writer
        self._where = where
        self._tap = tap
        self._nodes = tuple(nodes)
        self._cuda = cuda
        self._failed = failed
        self._calls = 0
        self._done = False
        self._recording = threading.Lock()

    def wrap(self, compiled: Callable[..., Any], finished: Callable[[], None]) -> Callable[..., Any]:
        """`compiled`, recorded until there is nothing more to learn; then `finished` takes the recorder out."""

        def run(*args: Any, **kwargs: Any) -> Any:
            # One call at a time: another thread's runs as it would without us.
            if self._done or not self._recording.acquire(blocking=False):
                with unseen:
                    return compiled(*args, **kwargs)
            try:
                if self._writer.closed:
                    self._done = True
                    finished()
                if self._done:
                    with unseen:
                        return compiled(*args, **kwargs)
                self._calls += 1
                self._tap.launches.clear()
                try:
                    with unseen, self._tap.recording():
                        return compiled(*args, **kwargs)
                finally:
                    self._after_call(finished)
            finally:
                self._recording.release()

        run.__dict__.update(getattr(compiled, "__dict__", {}))
        return run

    def _after_call(self, finished: Callable[[], None]) -> None:
        try:
            launches = list(self._tap.launches)
            captured = any(launch.capturing for launch in launches)
            if self._calls == 1 or captured:
                self._write(launches, captured)
            if captured or not self._cuda or self._calls >= MAX_CALLS:
                self._done = True
                self._nodes = ()
                finished()
        except Exception as error:
            self._done = True
            self._failed("captured ops", error)

    def _write(self, launches: list[Launch], captured: bool) -> None:
        assert self._where.model is not None and self._where.direction is not None
        buffers = [self._tap.buffers(launch) for launch in launches]
        text = chrome_trace(
            launches,
            buffers=buffers,
            nodes=nodes_by_launch(buffers, self._nodes),
            source=FROM_CAPTURE if captured else FROM_WRAPPER,
            cuda=self._cuda,
        )
        file = self._writer.write_text(layout.ops_file(self._where.model, self._where.direction), text)
        where = msgspec.structs.replace(self._where, phase="run", step=self._calls - 1)
        if file is not None:
            self._writer.event(where=where, kind="ops", name="captured_ops", file=file, nodes_after=len(launches))


def chrome_trace(
    launches: Sequence[Launch],
    *,
    buffers: Sequence[tuple[str, ...]],
    nodes: Sequence[tuple[IRNode, ...]],
    source: str,
    cuda: bool,
) -> str:
    """The launches as Chrome-trace JSON (complete events, microseconds from the first launch).

    Each launch names the buffers of `output_code.py` it touches, the scheduler nodes it carries out, the FX nodes these
    were lowered from, and the source lines those stem from.
    """
    begin_ns = launches[0].start_ns if launches else 0
    pid = os.getpid()
    events = [named("process_name", pid, 0, "compiled graph")]
    for index, (launch, names, ran) in enumerate(zip(launches, buffers, nodes, strict=True)):
        origins = {origin.name: origin for node in ran for origin in node.origins}.values()
        args = {
            "index": index,
            "output_code_line": launch.line,
            "arguments": list(launch.arguments),
            "buffers": list(names),
            "scheduler_nodes": [node.name for node in ran],
            "fx_nodes": [{"name": origin.name, "target": origin.target} for origin in origins],
            "sources": sorted({origin.source for origin in origins if origin.source}),
            "capturing": launch.capturing,
        }
        begin_us, for_us = (launch.start_ns - begin_ns) / 1000, launch.elapsed_ns / 1000
        events.append(lasting(launch.name, launch.kind, begin_us, for_us, pid=pid, tid=launch.thread, args=args))
    other = {
        "source": source,
        "durations": "time to enqueue on the host" if cuda else "time the launch took on the host",
        "launches": len(launches),
    }
    return json.dumps(document(events, other, unit="ns"), indent=1)
