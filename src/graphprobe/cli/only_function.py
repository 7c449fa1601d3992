"""The option `--only-function` of commands that run a program without a run folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from graphprobe.cli.option_rows import options_from
from graphprobe.errors import EXIT_OK, EXIT_UNDECIDED
from graphprobe.report.visible import echo
from graphprobe.settings import BY_NAME

if TYPE_CHECKING:
    from graphprobe.internals.dynamo.only_function import OnlyFunction

only_function_option = options_from((BY_NAME["only_function"],))


@contextmanager
def filtered(names: tuple[str, ...]) -> Iterator[OnlyFunction]:
    """Filter within the block, in processes forked in it as well, and say at its end what was left out.

    Raises:
        UsageError: a name is empty.
    """
    from graphprobe.internals.dynamo.only_function import OnlyFunction

    only = OnlyFunction(names or os.environ.get(BY_NAME["only_function"].env) or None, graphs_too=False)
    with only.shared():
        only.install()
        try:
            yield only
        finally:
            only.remove()
            for line in only.report():
                echo(f"graphprobe: {line}", err=True)


def exit_code(only: OnlyFunction, code: int) -> int:
    """`code`, but not "nothing is wrong" where the filter left nothing to look at."""
    return EXIT_UNDECIDED if only.patterns and not only.compiled and code == EXIT_OK else code
