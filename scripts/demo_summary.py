"""Says in a few lines what the demo run holds, from its manifest and its events."""

from __future__ import annotations

import collections
import json
import sys
from pathlib import Path


def main(root: Path) -> int:
    """Prints the summary of the newest run under `root`; 1 when there is none, or it is not complete."""
    manifests = sorted(root.rglob("graphprobe/manifest.json"), key=lambda path: path.stat().st_mtime_ns)
    if not manifests:
        print(f"demo: no run was written under {root}", file=sys.stderr)
        return 1
    folder = manifests[-1].parent
    manifest = json.loads(manifests[-1].read_text(encoding="utf-8"))
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    kinds = collections.Counter(event["kind"] for event in events)
    passes = [event for event in events if event["kind"] == "pass"]
    changed = sum(bool(event.get("changed")) for event in passes)
    seconds = ((manifest.get("ended_ns") or manifest["started_ns"]) - manifest["started_ns"]) / 1e9

    print(f"\nThe run lies in {folder.parent}")
    models, files = manifest.get("models", 0), manifest.get("collected_files", 0)
    megabytes = manifest.get("collected_bytes", 0) / 1e6
    print(f"  models: {models}, {len(events)} events, {files} files, {megabytes:.1f} MB, {seconds:.0f} s")
    print(f"  {len(passes)} compiler passes were seen; {changed} of them changed their graph, and those are kept")
    print("  by kind: " + ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()))
    for missing in manifest.get("missing", []):
        print(f"  missing: {missing}")
    print(f"Next: graphprobe show {folder.parent} model__0/forward/code")
    complete = manifest.get("state") == "finished" and not manifest.get("missing") and passes
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
