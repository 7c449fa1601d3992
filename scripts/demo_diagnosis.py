"""Checks what the demo's diagnosis found: the planted fault, and a repro that shows it in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PLANTED = "aten.relu.default"


def main(result: Path) -> int:
    """Runs the repro of the finding that names the planted fault; 1 when there is none, or it does not show it."""
    findings = json.loads(result.read_text(encoding="utf-8"))["findings"]
    found = next((finding for finding in findings if finding["op"] == PLANTED and finding["dossier"]), None)
    if found is None:
        print(f"demo: {PLANTED} was not found", file=sys.stderr)
        return 1
    repro = Path(found["dossier"]) / "repro.py"
    print(f"$ python {repro.relative_to(Path.cwd())}")
    sys.stdout.flush()
    code = subprocess.run([sys.executable, str(repro)], check=False).returncode
    print(f"exit code {code}: {'the fault is there' if code == 1 else 'the fault does not show'}")
    return 0 if code == 1 else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
