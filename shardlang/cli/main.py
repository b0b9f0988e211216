"""`shardc`: from the words of a command line to a command, and from whatever happens to an exit
code.

Never a traceback. Commands are read when they are first used. Exit codes: 0 fine, 1 the program has
errors, 2 the command was used wrongly, 3 the run failed, or shardc did."""

from __future__ import annotations

import gc
import importlib
import io
import os
import sys
from collections.abc import Sequence
from keyword import iskeyword
from typing import TYPE_CHECKING

import click

from shardlang import __version__
from shardlang.terminal import signals
from shardlang.terminal.display import one_line

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS = {
    "new": "Write a folder with a program that runs at once.",
    "check": "Report every mistake in programs, without running them.",
    "plan": "Show memory and bytes, and the layout of each statement.",
    "diff": "Show two plans beside each other: what differs.",
    "why": "Show why a value is laid out as it is, and the alternatives.",
    "report": "Write a page that shows where the time and the memory of a step go.",
    "tune": "Find the strategy that is predicted fastest, and write it.",
    "compile": "Write the torch program that each rank runs.",
    "run": "Train on this machine.",
    "predict": "Write what a trained model gives for each example.",
    "calibrate": "Measure this machine: its device, its cluster, its profile.",
    "launch": "Write, and start, a job on several hosts: torchrun, Slurm, Kubernetes.",
    "checkpoint": "Show what a checkpoint holds, or verify that it is whole.",
    "verify": "Check that a strategy changes no result.",
    "lsp": "Serve editors: mistakes as typed, layouts and memory beside the code.",
    "fmt": "Write programs in their one form.",
    "import": "Write a torch module as a program, with a map of its names.",
    "export": "Write weights as another library's model has them.",
    "convert": "Write a checkpoint in torch's form, or as one file of weights.",
    "tokens": "Write text as a file of token numbers, for the data source `tokens`.",
    "completion": "Print the script by which a shell completes words of shardc.",
    "explain": "Print what a diagnostic's code, an operator, an optimizer or a data source means.",
}

# The folders of commands that are not beside the others.
_FOLDERS = {
    "new": "begin.", "completion": "begin.", "lsp": "editors.",
    "predict": "ranks.", "export": "weights.", "convert": "weights.",
}  # fmt: skip


class Commands(click.Group):
    """Finds a command in the module of its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = _FOLDERS.get(cmd_name, "") + (f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name)
        command: click.Command = importlib.import_module(f"shardlang.cli.commands.{module}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            from shardlang.hints.nearest import offer

            hint = offer(args[0], COMMANDS, f"there are: {', '.join(COMMANDS)}")
            ctx.fail(f"there is no command `{args[0]}`; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """From the table above, so that `--help` imports no command."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """From the table as well."""
        from click.shell_completion import CompletionItem

        named = [CompletionItem(name, help=said) for name, said in COMMANDS.items() if name.startswith(incomplete)]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: shardc run examples/digits.shard --ranks 8",
)
@click.version_option(__version__, prog_name="shardc", message="%(prog)s %(version)s")
def shardc() -> None:
    """Shard: a declarative language for training neural networks on many devices."""


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point of `shardc`: ends the process."""
    # A compiler's trees live until it ends: looking for garbage among them takes a fifth of its
    # time and finds none. (`run` turns it on again before it trains.)
    gc.disable()
    signals.hold_save()
    signals.watch()
    try:
        code = run(arguments)
    except signals.Interrupted:  # with nothing left to do but to say so
        code = signals.FAILED
    signals.over()
    sys.exit(code)


def run(arguments: Sequence[str] | None = None) -> int:
    """One command; its exit code."""
    # A name of a file may hold what no encoding has; Python escapes it on standard error, but not
    # here.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if os.environ.get("_SHARDC_COMPLETE"):  # a shell asks for words
        from shardlang.cli import shells

        shells.register()
    try:
        code = _invoke(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader (`head`, say) has enough. What is left in the buffer must not fail once more at
        # exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _invoke(arguments: Sequence[str] | None) -> int:
    try:
        code = shardc.main(args=arguments, prog_name="shardc", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as help_text:
        click.echo(help_text.format_message(), err=True)
        return 2
    except click.ClickException as wrong:
        # It may quote any name; click would show that as it is.
        vars(wrong)["message"] = one_line(wrong.message)
        wrong.show()
        return 2
    except (click.Abort, KeyboardInterrupt) as end:
        # Click has its own exception for Ctrl-C.
        by = end.__cause__ if isinstance(end, click.Abort) else end
        print(f"\nshardc: ended by {by}" if isinstance(by, signals.Interrupted) else "\nshardc: ended", file=sys.stderr)
        return signals.FAILED
    except BrokenPipeError:
        raise
    except Exception as fault:
        from shardlang.cli.output import show_fault

        show_fault(fault)
        return 3
