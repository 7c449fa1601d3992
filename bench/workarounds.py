"""Is the price that `diagnose` tells of a workaround the one that is measured alone?

    python bench/workarounds.py NAME… [--most 20] [--rounds 5]

NAME: cases of `tests/diagnose`, or folders of them. Each is diagnosed; of those whose findings have a workaround with a
price, the program runs compiled as it is, and compiled with the text of the workaround in force, in processes of their
own, one after the other, `--rounds` times. The price alone is the median call with the workaround over the median call
without it, of all rounds. Measured is the last call of a case. `spread` is how many times as long the slowest round
takes as the fastest one, without any change: no price is known better than that.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT / "tests" / "diagnose")  # `bench/diagnose.py` would hide the package of the tests

WARM, CALLS, SECONDS, REST_S = 10, 200, 2.0, 0.003


def told(name: str) -> list[dict[str, Any]]:
    """The workarounds that a diagnosis of a case tells, with a price; each once."""
    score = ROOT / "tests" / "diagnose" / "score.py"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "diagnosis.json")
        subprocess.run([sys.executable, score, "--child", name, out], cwd=folder, capture_output=True, check=False)
        found = json.loads(out.read_text("utf-8"))["findings"] if out.exists() else []
    ways = {one["code"]: one for finding in found for one in finding["workarounds"] if one["call_time"]}
    return list(ways.values())


def alone(name: str, ways: list[dict[str, Any]], caches: str) -> float | None:
    """The median seconds of a call in a process of its own, with these workarounds in force; None: it does not run.

    `caches`: a folder; what is compiled for other calls may be wrong for this one.
    """
    command = [sys.executable, __file__, "--child", name, json.dumps(ways)]
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": caches}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def child(name: str, ways: list[dict[str, Any]]) -> None:
    """Print the median seconds of a call."""
    import cases
    import torch
    from score import located

    from graphprobe.diagnose.workarounds.apply import arguments_in, edit_from
    from graphprobe.diagnose.workarounds.edits import put_in
    from graphprobe.findings import Workaround

    case = cases.load(located(name))
    fn, args, *rest = case.make()
    kwargs: dict[str, Any] = rest[0] if rest else {}
    if hasattr(case, "extra_calls"):
        args, kwargs = case.extra_calls()[-1]
    settings = dict(getattr(case, "COMPILE", {}))
    with getattr(case, "plant", contextlib.nullcontext)():
        given: dict[str, Any] = {"backend": getattr(case, "BACKEND", "inductor"), **settings}
        for way in ways:
            if way["kind"] == "uncompiled":
                edit = edit_from(Workaround(**{key: way[key] for key in ("kind", "code", "place")}))
                put_in([edit] if edit is not None else [])
            elif arguments := arguments_in(way["code"]):
                given |= arguments
            else:
                exec(way["code"], {})
        compiled = torch.compile(fn, **given)
        grad = getattr(case, "GRAD", False)

        def call() -> None:
            with contextlib.nullcontext() if grad else torch.no_grad():
                result = compiled(*args, **kwargs)
            found = [t for t in torch.utils._pytree.tree_leaves(result) if torch.is_tensor(t) and t.requires_grad]
            torch.autograd.backward(found, [torch.ones_like(t) for t in found])

        for _ in range(WARM):
            began = time.perf_counter()
            call()
        repeats = max(1, min(100, int(1e-3 / (time.perf_counter() - began))))
        taken, until = [], time.monotonic() + SECONDS
        while len(taken) < CALLS and time.monotonic() < until:
            time.sleep(REST_S)
            call()
            began = time.perf_counter()
            for _ in range(repeats):
                call()
            taken.append((time.perf_counter() - began) / repeats)
    print(statistics.median(taken))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--most", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child[0], json.loads(options.child[1]))
        return
    import cases

    names = [n for what in options.names for n in (cases.names(what) if what in cases.FOLDERS else [what])]
    near, count = 0, 0
    print("| case | ms | spread | kind | told | alone | off |\n|---|---|---|---|---|---|---|")
    for name in names:
        if count == options.most:
            break
        if not (ways := told(name)):
            continue
        with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
            pairs = [(alone(name, [], a), alone(name, ways, b)) for _ in range(options.rounds)]
        if any(None in pair for pair in pairs):
            print(f"| {name} | it does not run in a process of its own | | | | | |", flush=True)
            continue
        sides = list(zip(*pairs, strict=True))
        plain, changed = map(statistics.median, sides)
        spread = max(sides[0]) / min(sides[0])
        price, measured = ways[0]["call_time"], changed / plain
        count, near = count + 1, near + (abs(price / measured - 1) <= 0.1)
        kinds, off = " and ".join(way["kind"] for way in ways), f"{price / measured - 1:+.0%}"
        print(
            f"| {name} | {plain * 1e3:.3f} | {spread:.2f} | {kinds} | {price:.2f} | {measured:.2f} | {off} |",
            flush=True,
        )
    print(f"\nwithin 10 %: {near} of {count}")


if __name__ == "__main__":
    main()
