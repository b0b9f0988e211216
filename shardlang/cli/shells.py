"""A line and its cursor, as a shell tells them -> the words that may stand there, as its script
reads them: click's completion, with scripts of ours for bash, zsh and fish.

Click's own scripts take names with spaces apart, replace `--option=` together with the value, and
put a space behind `--set PATH=`. A script of ours sends the line up to the word that its shell
replaces, and that word up to the cursor; both are read as a shell reads them."""

from __future__ import annotations

import os
import re

from click.shell_completion import CompletionItem, ShellComplete, add_completion_class, split_arg_string

from shardlang.cli.candidates import PROGRAM


class Script(ShellComplete):
    """The part that the three shells share."""

    def get_completion_args(self) -> tuple[list[str], str]:
        *words, typed = _words(os.environ["COMP_WORDS"] + os.environ["COMP_CWORD"])
        return words[1:], typed

    def complete(self) -> str:
        """Nothing where anything goes wrong, which would be printed into the line that is typed."""
        try:
            return super().complete()
        except Exception:
            return ""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """Those of click, without what stands before the word that the shell replaces."""
        found = super().get_completions(args, incomplete)
        option = incomplete[: incomplete.find("=") + 1] if incomplete.startswith("--") else ""
        kept = len(_words(os.environ["COMP_WORDS"])[-1])
        listed = [each for item in found for each in (self.files(item) if item.type == PROGRAM else [item])]
        for item in listed:
            item.value = f"{option}{item.value}"[kept:]
        return listed

    def files(self, item: CompletionItem) -> list[CompletionItem]:
        """The `.shard` files and the folders of which the value of an item is the beginning."""
        head, begun = os.path.split(item.value)
        try:
            with os.scandir(os.path.expanduser(head) or ".") as entries:
                there = sorted((each.name, each.is_dir()) for each in entries)
        except OSError:
            return []
        # A name that cannot be shown would do something to the terminal.
        fits = (at for at in there if at[0].startswith(begun) and at[0].isprintable() and (begun or at[0][0] != "."))
        found = (os.path.join(head, name) + "/" * folder for name, folder in fits if folder or name.endswith(".shard"))
        return [CompletionItem(name, PROGRAM) for name in found]


def _words(line: str) -> list[str]:
    """The words of a line, the last of which may be empty or in open quotes."""
    # Between double quotes a shell reads \$ as $; shlex does not.
    *words, last = split_arg_string(re.sub(r"\\([$`])", r"\1", f"{line}."))
    return [*words, last[:-1]]


class Bash(Script):
    name = "bash"
    source_template = """\
%(complete_func)s() {
    local type value line=${COMP_LINE:0:COMP_POINT}
    COMPREPLY=()
    while IFS=, read -r type value; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            program) compopt -o filenames; COMPREPLY+=("$value") ;;
            plain) COMPREPLY+=("$value") ;;
        esac
        [[ $value == *[=/] ]] && compopt -o nospace
    done <<< "$(COMP_WORDS=${line%%"$2"} COMP_CWORD=$2 %(complete_var)s=bash_complete "$1" 2> /dev/null)"
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{item.value}"


class Zsh(Script):
    name = "zsh"
    source_template = """\
#compdef %(prog_name)s

%(complete_func)s() {
    local type value help line="${(j: :)words[1,CURRENT-1]} "
    local -a plain open described
    if [[ $PREFIX == --*=* ]]; then
        line+="${PREFIX%%%%=*}="
        compset -P 1 '*='
    fi
    local answer="$(COMP_WORDS=$line$QIPREFIX COMP_CWORD=$PREFIX %(complete_var)s=zsh_complete $words[1] 2> /dev/null)"
    for type value help in "${(@f)answer}"; do
        case $type in
            dir) _path_files -/ ;;
            file) _path_files -f ;;
            program) _path_files -g '*(-/) *.shard(-.)' ;;
            plain)
                if [[ $value == *= ]]; then
                    open+=("$value")
                elif [[ $help == _ ]]; then
                    plain+=("$value")
                else
                    described+=("${value//:/\\\\:}:$help")
                fi ;;
        esac
    done
    (( $#described )) && _describe -V unsorted described -U
    (( $#plain )) && compadd -U -i "$IPREFIX" -V unsorted -a plain
    (( $#open )) && compadd -U -i "$IPREFIX" -S '' -V unsorted -a open
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""

    def files(self, item: CompletionItem) -> list[CompletionItem]:
        """The item as it is: the script has zsh find the files, in its own way."""
        return [item]

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type}\n{item.value}\n{item.help or '_'}"


class Fish(Script):
    name = "fish"
    source_template = """\
function %(complete_func)s
    set -l shardc (commandline -po)[1]
    set -l word (commandline -ct)
    set -l line (commandline -cp | string collect)
    set -l head (string sub -l (math (string length -- "$line") - (string length -- "$word")) -- "$line")
    for item in (COMP_WORDS=$head COMP_CWORD=$word %(complete_var)s=fish_complete $shardc 2> /dev/null)
        set -l found (string split -m 1 , -- $item)
        switch $found[1]
            case dir
                __fish_complete_directories (commandline -ct)
            case file
                __fish_complete_path (commandline -ct)
            case '*'
                printf '%%s\\n' $found[2]
        end
    end
end
complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{item.value}\t{item.help}" if item.help else f"{item.type},{item.value}"


SHELLS = {kind.name: kind for kind in (Bash, Zsh, Fish)}


def register() -> None:
    """Click answers with these scripts from now on."""
    for kind in SHELLS.values():
        add_completion_class(kind)
