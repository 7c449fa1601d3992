"""The pytest plugin's options. The rest is in `graphprobe.testing`, and is imported with `--graphprobe` only.

It is a package of its own: pytest imports the plugins of all installed packages, and importing graphprobe begins to
collect where `TORCH_COMPILE_DEBUG` is set.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from graphprobe.testing.failing import CompileWatch

OUT = ".graphprobe"
_WATCH = pytest.StashKey["CompileWatch"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options; `pytest --help` shows them."""
    group = parser.getgroup("graphprobe", "diagnose failing tests that call something compiled")
    group.addoption(
        "--graphprobe",
        action="store_true",
        help="run a failing test that called something compiled once more, and diagnose those calls",
    )
    group.addoption(
        "--graphprobe-out", metavar="DIR", default=OUT, help=f"folder of the dossiers, a folder a test (default: {OUT})"
    )
    group.addoption(
        "--graphprobe-budget",
        metavar="SECONDS",
        type=float,
        default=None,
        help="begin no further step of the diagnosis of one function after this",
    )
    group.addoption(
        "--graphprobe-exact",
        action="store_true",
        help="every bit counts: assert_compiles_like_eager and diagnoses take what rounding explains for a fault, too",
    )


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Stand in for `torch.compile` before a conftest.py can import torch and compile something."""
    if getattr(early_config.known_args_namespace, "graphprobe", False):
        _watch(early_config, early_config.known_args_namespace)


def pytest_configure(config: pytest.Config) -> None:
    """With `--graphprobe`, watch the session; with `--graphprobe-exact`, tell the assertion."""
    if config.getoption("graphprobe_exact"):
        from graphprobe.testing.assertion import EXACT

        token = EXACT.set(True)
        config.add_cleanup(lambda: EXACT.reset(token))
    if not config.getoption("graphprobe"):
        return
    budget_s = config.getoption("graphprobe_budget")
    if budget_s is not None and not budget_s > 0:
        raise pytest.UsageError(f"--graphprobe-budget {budget_s:g}: it takes a number of seconds above 0")
    out = Path(config.getoption("graphprobe_out")).absolute()
    if out.exists() and not out.is_dir():
        raise pytest.UsageError(f"--graphprobe-out {out}: it is no folder")
    from graphprobe.testing.failing import FailingTests

    config.pluginmanager.register(FailingTests(config, _watch(config, config.option), out), "graphprobe-failing-tests")


def _watch(config: pytest.Config, options: argparse.Namespace) -> CompileWatch:
    found = config.stash.get(_WATCH, None)
    if found is None:
        from graphprobe.testing.failing import CompileWatch

        found = config.stash[_WATCH] = CompileWatch(options.graphprobe_budget, exact=options.graphprobe_exact)
        found.install()
    return found
