"""A test of `implementation` or `instructions` is run once for each that this processor has."""

import pytest

from numerics.stats_both import IMPLEMENTATIONS, INSTRUCTION_SETS


@pytest.fixture(scope="session", params=IMPLEMENTATIONS)
def implementation(request: pytest.FixtureRequest) -> str:
    """The fallback, or the loops of the core for an instruction set."""
    return str(request.param)


@pytest.fixture(scope="session", params=INSTRUCTION_SETS)
def instructions(request: pytest.FixtureRequest) -> str:
    """The loops of the core for an instruction set."""
    return str(request.param)
