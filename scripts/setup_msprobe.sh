#!/usr/bin/env bash
# Creates or completes an environment with mindstudio-probe, for the tests and benchmarks that hold graphprobe against it.
#
#   scripts/setup_msprobe.sh VENV [TARGET]        TARGET defaults to VENV-msprobe
#
# It sees what is installed in VENV, torch and graphprobe included, and adds what mindstudio-probe needs beyond that.
# Not in VENV itself, so that all other tests run without what it brings along: pandas, scipy, scikit-learn.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$1
target=${2:-$venv-msprobe}
release=mindstudio-probe==26.2.0
export PIP_DISABLE_PIP_VERSION_CHECK=1

packages() { "$1" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'; }

if ! [ -x "$target/bin/python" ]; then
    printf 'setup: creating %s\n' "$target"
    "$(readlink -f "$venv/bin/python")" -m venv --without-pip "$target"
    printf 'import site; site.addsitedir(%s)\n' "'$(packages "$venv/bin/python")'" >"$(packages "$target/bin/python")/graphprobe_venv.pth"
fi
"$target/bin/python" -c 'import importlib.metadata as m; assert m.version("mindstudio-probe")' 2>/dev/null ||
    "$target/bin/python" -m pip install --quiet --constraint constraints.txt "$release"
printf 'setup: ready: %s in %s\n' "$release" "$target"
