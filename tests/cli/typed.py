"""Lines typed into a real bash, zsh or fish -> what the shell offers at the end of each, as a command would get it.

The shell reads nothing of the user's, and has the script that `shardc completion` prints. bash and zsh have a terminal,
where a key inserts all that they offer; fish has a command for this.
"""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest

from shardlang.cli.shells import SHELLS

ROOT = Path(__file__).resolve().parents[2]
# Control and T insert all words that fit. `shown` prints words between marks that are in no typed line.
_SHOWN = "shown() { printf '\\n<<'; printf '%s\\036' \"$@\"; printf '>>\\n'; }\n"
_OWN = {
    "bash": f"bind 'set enable-bracketed-paste off'\nbind '\"\\C-t\": insert-completions'\n{_SHOWN}",
    "zsh": f"""unset zle_bracketed_paste
autoload -Uz compinit && compinit -u -D
bindkey -e
zle -C every complete-word _generic
bindkey '^T' every
zstyle ':completion:every:*' insert true
zstyle ':completion:every:*' completer _all_matches _complete
{_SHOWN}""",
}
_STARTED = {"bash": ["--noprofile", "--rcfile", ".zshrc", "-i"], "zsh": ["-d", "-i"]}


def offered(shell: str, home: Path, folder: Path, lines: Iterable[str]) -> dict[str, list[str]]:
    """Line -> the words that a shell offers there, in a folder. `home`: an empty folder for the shell's own files."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: `apt-get install {shell}`")
    environment = _environment(shell, home)
    if shell == "fish":
        return {line: _fish(line, folder, environment) for line in lines}
    with _session(shell, folder, environment) as terminal:
        return {line: _inserted(line, terminal) for line in lines}


def _environment(shell: str, home: Path) -> dict[str, str]:
    """The shell's files, and a `shardc`, in its home; how it finds them."""
    command = home / "bin" / "shardc"
    command.parent.mkdir(parents=True)
    text = "from shardlang.cli.start import main; main()"
    command.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{text}' \"$@\"\n")
    command.chmod(0o755)
    script = SHELLS[shell](click.Group(), {}, "shardc", "_SHARDC_COMPLETE").source()
    (home / ".zshrc").write_text(_OWN.get(shell, "") + script)
    own = {"HOME": str(home), "ZDOTDIR": str(home), "PYTHONPATH": str(ROOT), "TERM": "dumb", "LC_ALL": "C.UTF-8"}
    return {**own, "PATH": f"{command.parent}:{os.environ['PATH']}"}


def _fish(line: str, folder: Path, environment: dict[str, str]) -> list[str]:
    words = ["fish", "--no-config", "--command", "source ~/.zshrc; complete -C $argv", "--", line]
    said = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    assert said.stderr == ""
    return [each.partition("\t")[0] for each in said.stdout.splitlines()]


@contextmanager
def _session(shell: str, folder: Path, environment: dict[str, str]) -> Iterator[int]:
    """The terminal of a shell."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        words = [str(Path(environment["HOME"], word)) if word == ".zshrc" else word for word in _STARTED[shell]]
        os.execvpe(shell, [shell, *words], environment)
    try:
        yield terminal
    finally:
        os.close(terminal)
        os.waitpid(child, 0)


def _inserted(line: str, terminal: int) -> list[str]:
    """The words behind those that are whole before the key is struck."""
    os.write(terminal, f"{line}\x14\x01shown \n".encode())
    seen = b""
    while b">>" not in seen.partition(b"<<")[2]:
        seen += os.read(terminal, 1 << 16)
    shown = seen.partition(b"<<")[2].partition(b">>")[0].decode().split("\x1e")[:-1]
    return shown[len(click.shell_completion.split_arg_string(f"{line}.")) - 1 :]
