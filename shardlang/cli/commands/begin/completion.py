"""`shardc completion`: the script by which a shell completes the words of `shardc`."""

from __future__ import annotations

import sys

import click

from shardlang.cli import output, shells


@click.command("completion", epilog="Example: shardc completion bash")
@click.argument("shell", type=click.Choice(list(shells.SHELLS)))
def command(shell: str) -> None:
    """Print the script by which a shell completes words of shardc.

    It completes commands and options, files, the strategies and clusters of the file that is
    named, paths after --set, and what `explain` explains. The line to type, or to write into the
    file that the shell reads at its start:

    \b
    bash, ~/.bashrc:  eval "$(shardc completion bash)"
    zsh, ~/.zshrc:    autoload -Uz compinit && compinit; eval "$(shardc completion zsh)"
    fish, ~/.config/fish/config.fish:  shardc completion fish | source"""
    group = click.get_current_context().find_root().command
    output.write(shells.SHELLS[shell](group, {}, "shardc", "_SHARDC_COMPLETE").source(), sys.stdout)
