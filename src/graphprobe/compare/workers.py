"""Who judges: this thread, several threads, or the workers of a Dask scheduler. Results come in the order of tasks."""

from __future__ import annotations

import functools
import importlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from graphprobe.compare.judge import Judge, Replayer, Task
from graphprobe.compare.open import extra_module, open_dump
from graphprobe.compare.options import Options
from graphprobe.compare.result import CallResult
from graphprobe.errors import UsageError

BLOCK = 32
"""Tasks that are handed over together."""

AHEAD = 3
"""Blocks a worker may be ahead of the one whose result is written: memory is bounded by it."""

RETRIES = 3
"""How often Dask repeats a block whose worker died."""

TOGETHER = 128
"""Entries that this thread judges one after the other, before anything else is done with them."""

Entry = TypeVar("Entry")
Item = TypeVar("Item")
Block = list[Task]
Judged = list[CallResult]


def blocks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """The items in lists of `size`; the last may be shorter."""
    rest = iter(items)
    while block := list(itertools.islice(rest, size)):
        yield block


def judged(
    entries: Iterable[Task | Entry], judge: Judge, options: Options, titles: tuple[str, str]
) -> Iterator[tuple[Task, CallResult] | Entry]:
    """Every task with its result, every other entry as it is, in order."""
    if options.scheduler:
        with _cluster(options.scheduler) as client:
            yield from _ordered(entries, _submit_remotely(client, titles, options.remote_replayer), AHEAD * 8)
    elif (jobs := options.jobs or 1) == 1:
        # Many of one kind after the other go faster than one of each kind by turns: code and data stay in the caches.
        for block in blocks(entries, TOGETHER):
            yield from [(entry, judge.judge(entry)) if isinstance(entry, Task) else entry for entry in block]
    else:
        with ThreadPoolExecutor(jobs, thread_name_prefix="compare") as pool:

            def submit(block: Block) -> Callable[[], Judged]:
                future: Future[Judged] = pool.submit(lambda: [judge.judge(task) for task in block])
                return future.result

            yield from _ordered(entries, submit, AHEAD * jobs)


def _ordered(
    entries: Iterable[Task | Entry], submit: Callable[[Block], Callable[[], Judged]], ahead: int
) -> Iterator[tuple[Task, CallResult] | Entry]:
    waiting: deque[tuple[list[Task | Entry], Callable[[], Judged]]] = deque()

    def finish() -> Iterator[tuple[Task, CallResult] | Entry]:
        block, result = waiting.popleft()
        results = iter(result())
        for entry in block:
            yield (entry, next(results)) if isinstance(entry, Task) else entry

    for some in blocks(entries, BLOCK):
        waiting.append((some, submit([entry for entry in some if isinstance(entry, Task)])))
        if len(waiting) > ahead:
            yield from finish()
    while waiting:
        yield from finish()


def _cluster(address: str) -> Any:
    distributed = extra_module("distributed", extra="dask", purpose="--scheduler")
    try:
        return distributed.Client(address)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"there is no Dask scheduler at {address}: {error}", hint="pass the address it printed, tcp://host:8786"
        ) from error


def _submit_remotely(client: Any, titles: tuple[str, str], replayer: str) -> Callable[[Block], Callable[[], Judged]]:
    """A block travels as bytes, so that nothing but this module's function has to be known to the workers."""

    def submit(block: Block) -> Callable[[], Judged]:
        data = msgspec.msgpack.encode(block)
        future = client.submit(judge_block, *titles, data, replayer, pure=False, retries=RETRIES)
        return lambda: msgspec.msgpack.decode(future.result(), type=Judged)

    return submit


@functools.lru_cache(maxsize=4)
def _judge_of(candidate: str, reference: str, replayer: str) -> Judge:
    module, _, name = replayer.partition(":")
    made: Replayer | None = getattr(importlib.import_module(module), name)() if replayer else None
    return Judge(open_dump(candidate), open_dump(reference), replayer=made)


def judge_block(candidate: str, reference: str, data: bytes, replayer: str) -> bytes:
    """Judges a block of encoded tasks and encodes the results; runs wherever both dumps can be opened by path."""
    judge = _judge_of(candidate, reference, replayer)
    return msgspec.msgpack.encode([judge.judge(task) for task in msgspec.msgpack.decode(data, type=Block)])
