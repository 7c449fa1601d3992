"""The `graphprobe` command. Each subcommand is imported only when it is called."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

import graphprobe
from graphprobe.cli.ending import end_of, run_command, tell
from graphprobe.errors import EXIT_USAGE, GraphprobeError, UsageError, nearest
from graphprobe.report.visible import echo

GROUPS = {
    "Find what is wrong": {
        "diagnose": "Find what goes wrong when a program is compiled, and prove it.",
        "watch": "Watch a long run, and find what makes the first NaN, spike or crash.",
        "drift": "Say whether a compiled training drifts by a fault or by rounding.",
        "explain": "Show where a program breaks into graphs, and how to mend it.",
        "recompiles": "Show what is compiled again and again, why, and what helps.",
        "profile": "Show where compile time goes, by phase and by pass.",
        "logs": "Name the step where a program stopped, and show torch's log.",
        "compare": "Compare two dumps and name the first call that goes wrong.",
        "reduce": "Make a failing case as small as it gets.",
        "replay": "Trace a recorded frame again that could not be traced.",
    },
    "See what the compiler did": {
        "ls": "List what a run holds, as a tree.",
        "show": "Print one artifact of a run.",
        "diff": "Show what a pass did to the graph, node by node.",
        "parse": "Print stack, statistics and values of one call of a dump.",
    },
    "Collect": {
        "run": "Run a program and collect every stage of its compilations.",
        "merge": "Join the dumps of several ranks, and compare the ranks.",
    },
    "Share": {
        "report": "Make one HTML file of a run, a diagnosis, a comparison or a dump.",
        "issue": "Print the report of a fault as title and body of an issue.",
        "export": "Write a run, a dump or a comparison in the form of another tool.",
        "convert": "Turn dumped values into .npy or text.",
    },
    "Check": {
        "demo": "Plant a fault in the compiler, find it, and show it.",
        "doctor": "Check the installation and what can be collected with it.",
    },
}
"""The commands by what they are for. Their lines stand here, so that the help imports none of them."""

COMMANDS = {name: line for group in GROUPS.values() for name, line in group.items()}
"""Each lies in the module of its name in `cli.commands`."""

AGENTS = Path(graphprobe.__file__).parent / "skills" / "graphprobe" / "SKILL.md"
"""The page for coding agents, in the form in which they read such pages."""

_SEE = "graphprobe --help lists the commands"

_PLAIN = {
    "is not a valid integer range": "is no whole number",
    "is not a valid integer": "is no whole number",
    "is not a valid float range": "is no number",
    "is not a valid float": "is no number",
}
"""How click puts it, and how we do."""


class LazyGroup(click.Group):
    """A group that knows its subcommands by name, imports one when it is called, and ends on errors as they ask."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported; None when there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"graphprobe.cli.commands.{cmd_name}").command
        command.short_help = COMMANDS[cmd_name]
        for option in command.params:
            if not {"--out", "--dump-to"}.isdisjoint(option.opts):
                option.type = _NotEmpty(option.type)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`help COMMAND` is `COMMAND --help`; `help agents` prints the page for coding agents."""
        if args == ["help", "agents"]:
            echo(AGENTS.read_text(encoding="utf-8").rstrip("\n"))
            ctx.exit()
        if args[:1] == ["help"]:
            if len(args) > 2:
                raise UsageError(f"help takes one command, not {len(args) - 1}: {' '.join(args[1:])}")
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's; with the nearest name where there is no such command."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            raise UsageError(f"there is no command {args[0]!r}", hint=nearest(args[0], COMMANDS, _SEE))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands in the help, without importing any."""
        width = max(map(len, COMMANDS))
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), line) for name, line in group.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand; a graphprobe error is shown with its hint and ends with its own exit code."""
        try:
            return super().invoke(ctx)
        except GraphprobeError as error:
            ctx.exit(tell(error))
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except (Exception, KeyboardInterrupt) as error:
            ctx.exit(end_of(error))

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        """As click's; signals, a missing output and our own faults end with an exit code of their own."""
        words = list(sys.argv[1:] if args is None else args)
        name = next((word for word in words if not word.startswith("-")), None)
        if options.get("standalone_mode") is False:
            return super().main(args, *rest, **options)
        options["standalone_mode"] = False
        return run_command(name, lambda: self._leave(name, args, *rest, **options), alone=args is None)

    def _leave(self, name: str | None, *args: Any, **options: Any) -> NoReturn:
        """Run it, and leave by SystemExit; what click finds wrong is told as what is found by us."""
        try:
            code = super().main(*args, **options)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            code = EXIT_USAGE
        except click.ClickException as error:
            code = tell(said_by_click(error, name))
        except GraphprobeError as error:
            code = tell(error)
        except click.Abort as error:
            code = end_of(error.__cause__ or KeyboardInterrupt())
        sys.exit(code if isinstance(code, int) else 0)


class _NotEmpty(click.ParamType[Any]):
    """Refuses the empty name that a variable leaves which is not set; anything else is as the option has it."""

    def __init__(self, inner: click.ParamType[Any]) -> None:
        self.name, self._inner = inner.name, inner

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click's."""
        if value == "" and param is not None:
            raise UsageError(f"{param.opts[-1]} is empty", hint="name a file or folder")
        return self._inner.convert(value, param, ctx)


def said_by_click(error: click.ClickException, command: str | None) -> UsageError:
    """What click found wrong on the command line, as an error of ours: on one line, with a hint or a nearest name."""
    context: click.Context | None = getattr(error, "ctx", None)
    if context is not None:
        command = context.info_name if context.parent is not None else None
    hint = f"see graphprobe {command} --help" if command in COMMANDS else "see graphprobe --help"
    message = " ".join(error.format_message().split()).rstrip(".")
    for old, new in _PLAIN.items():
        message = message.replace(old, new)
    if isinstance(error, click.NoSuchOption):
        message = f"there is no option {error.option_name!r}"
        options = [p for p in context.command.get_params(context) if isinstance(p, click.Option)] if context else []
        known = [name for option in options for name in (*option.opts, *option.secondary_opts)]
        if len(error.option_name) > 2:
            hint = nearest(error.option_name, known, hint)
    elif isinstance(error, click.BadParameter) and error.param is not None:
        given = re.search(r"'([^']*)' is not one of", message)
        if given is not None and isinstance(error.param.type, click.Choice):
            hint = nearest(given[1], map(str, error.param.type.choices), hint)
    return UsageError(message[:1].lower() + message[1:], hint=hint)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    graphprobe.__version__, "-V", "--version", message="graphprobe %(version)s", help="Show the version."
)
def main() -> None:
    """Find where a program goes wrong when torch.compile compiles it, and prove it.

    \b
    Examples:
      graphprobe diagnose train.py --epochs 1
      graphprobe run train.py && graphprobe ls
      graphprobe help diagnose
      graphprobe help agents

    Exit codes: 0 fine, 1 a difference or a fault was found, 2 wrong usage, 125 could not decide.
    """


if __name__ == "__main__":
    main()
