#!/usr/bin/env bash
# Creates or updates a virtual environment with torch, the dependencies and graphprobe itself (editable).
#
#   scripts/setup_env.sh [VENV]        VENV defaults to .venv
#
# torch comes first and on its own, because on Linux the default wheel of PyPI brings several gigabytes of CUDA
# libraries. This script takes a CPU build only, and stops with a message when it finds none. To choose another build:
#
#   make setup TORCH=torch==2.13.0     the default wheel, CUDA included
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${1:-.venv}
base_python=${PYTHON:-python3}
cpu_index=https://download.pytorch.org/whl/cpu
export PIP_DISABLE_PIP_VERSION_CHECK=1

die() {
    printf 'setup: %s\n' "$@" >&2
    exit 1
}

say() { printf 'setup: %s\n' "$1"; }

create_venv() {
    command -v "$base_python" >/dev/null || die "no $base_python on the PATH" "install Python 3.11 or newer, or name one: make setup PYTHON=/path/to/python3.11"
    "$base_python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        die "$base_python is $("$base_python" --version 2>&1), but graphprobe needs Python 3.11 or newer" "name another one: make setup PYTHON=python3.11"
    say "creating $venv"
    "$base_python" -m venv "$venv" 2>/dev/null && return
    rm -rf "$venv"
    "$base_python" -m virtualenv --quiet "$venv" 2>/dev/null && return
    # Debian keeps venv in a package of its own; pip alone is enough to get the same from PyPI.
    local bootstrap
    bootstrap=$(mktemp -d)
    if "$base_python" -m pip install --quiet --target "$bootstrap" virtualenv &&
        PYTHONPATH=$bootstrap "$base_python" -m virtualenv --quiet "$venv"; then
        rm -rf "$bootstrap"
        return
    fi
    rm -rf "$bootstrap" "$venv"
    die "$base_python can make no virtual environment" "on Debian: apt-get install python3-venv"
}

install_torch() {
    local pin release
    pin=$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' constraints.txt)
    release=${pin#torch==}
    if [ -n "${TORCH:-}" ]; then
        say "installing $TORCH, as asked"
        pip_install "$TORCH"
        return
    fi
    if [ "$("$python" -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null | sed 's/+.*//')" = "$release" ]; then
        say "torch $release is already there"
        return
    fi
    if [ "$(uname -s)" != Linux ]; then
        pip_install "$pin" # elsewhere the wheels of PyPI carry no CUDA
        return
    fi
    say "installing the CPU build of $pin"
    # First what this machine offers in a --find-links folder, then the configured indexes, then PyTorch's own.
    "$python" -m pip install --quiet --no-index --no-deps "$pin" 2>/dev/null && return
    pip_install --no-deps "$pin+cpu" 2>/dev/null && return
    pip_install --no-deps --index-url "$cpu_index" "$pin+cpu" && return
    die "found no CPU build of $pin: not in a --find-links folder, not in the configured indexes, not at $cpu_index" \
        "with a CPU wheel at hand:  PIP_FIND_LINKS=/folder/with/the/wheel make setup" \
        "or take the default wheel with CUDA (several gigabytes):  make setup TORCH=$pin"
}

pip_install() { "$python" -m pip install --quiet "$@"; }

python=$venv/bin/python
if ! "$python" -m pip --version >/dev/null 2>&1; then
    create_venv
fi
install_torch
say "installing the other dependencies at the versions of constraints.txt"
constraints=constraints.txt
if [ -n "${TORCH:-}" ]; then # a torch chosen by hand may be another release than the pinned one
    constraints=$(mktemp)
    trap 'rm -f "$constraints"' EXIT
    grep -v '^torch==' constraints.txt >"$constraints"
fi
pip_install --constraint "$constraints" --editable '.[dev]'
say "native core: $("$python" -c 'from graphprobe.numerics import native; print(native.description())')"
command -v g++ >/dev/null || say "warning: there is no g++; torch.compile needs it on the CPU (Debian: apt-get install g++)"
say "ready: $("$python" -c 'import importlib.metadata as m; print("torch", m.version("torch"))') in $venv"
