"""What `--logs` accepts, and what it says about the rest."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from conftest import Finished
from graphprobe.cli.main import main
from graphprobe.errors import UsageError
from graphprobe.internals.logs import log_plan as logs_registry
from graphprobe.internals.logs.log_plan import USUAL, plan_from_text


def levels(text: str) -> dict[str, int]:
    return {route.name: route.level for route in plan_from_text(text).routes}


def test_one_level_is_for_the_usual_components_and_names_go_before_it() -> None:
    assert levels("info") == dict.fromkeys(USUAL, logging.INFO)
    assert levels("debug, dynamo=error") == {**dict.fromkeys(USUAL, logging.DEBUG), "dynamo": logging.ERROR}
    assert plan_from_text("verbose").verbose and not plan_from_text("debug").verbose
    assert plan_from_text(None).routes == ()


def test_torchs_own_way_to_write_it() -> None:
    plan = plan_from_text("+dynamo,-aot,inductor,graph_breaks,+recompiles,all=error")
    expected = {"dynamo": logging.DEBUG, "aot": logging.ERROR, "inductor": logging.INFO, "torch": logging.ERROR}
    assert {route.name: route.level for route in plan.routes} == expected
    assert plan.artifacts == {"graph_breaks", "recompiles"}


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("dynamo=degub", "'degub' is no level", "debug"),
        ("+graph_brakes", "torch has no log named 'graph_brakes'", "graph_breaks"),
        ("dinamo=info", "torch has no log named 'dinamo'", "dynamo"),
        ("dynamo=info,dynamo=debug", "dynamo has two levels, info and debug", ""),
        ("info,debug", "two levels", ""),
        ("recompiles=info", "recompiles is an artifact", "+recompiles"),
        ("+dynamo=debug", "two ways to say one thing", ""),
        ("info,,debug", "nothing between two commas", "with commas between"),
        ("dynamo debug", "'dynamo debug' is no setting", "NAME=LEVEL"),
        ("torch.no_such_module", "torch has no log named", ""),
    ],
)
def test_mistakes(text: str, says: str, hint: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        plan_from_text(text)
    assert hint in caught.value.hint and text in str(caught.value)


def test_names_read_from_the_source_are_torchs_own() -> None:
    import torch._logging  # noqa: F401

    read, asked = logs_registry._from_source(), logs_registry._from_torch()
    assert read is not None and len(read.artifacts) > 20
    assert read.components == asked.components
    assert dict(sorted(read.artifacts.items())) == asked.artifacts


ASKED = """
import sys
from graphprobe.internals.logs.log_plan import plan_from_text
plan_from_text("debug,+guards")
print("torch" in sys.modules)
"""


def test_asking_does_not_import_torch_and_a_mistake_makes_no_folder(
    run_python: Callable[..., Finished], tmp_path: Path
) -> None:
    assert run_python("-c", ASKED).out == "False\n"
    done = CliRunner().invoke(main, ["run", "--out", str(tmp_path), "--logs", "dynamo=loud", "-c", "print(1)"])
    assert (done.exit_code, done.stdout, list(tmp_path.iterdir())) == (2, "", [])
    assert "'loud' is no level" in done.stderr
