"""A fault that stops a run and that its user can mend: a `RunError`, with a stable code and the
place of the mistake. That a package is missing is one."""

from __future__ import annotations

from pathlib import Path

from shardlang.terminal.display import one_line, safe

# The packages that the compiler does without, and the extra that has each, with its purpose.
_TRAIN = "train", "all that training needs"
_EXTRAS = {
    **dict.fromkeys(("torch", "numpy", "safetensors", "cloudpickle"), _TRAIN),
    "highspy": ("tune", "what `tune` needs"),
}


class RunError(Exception):
    """A mistake in data, weights or environment. `file`, `line` say where, `help` what to do."""

    def __init__(
        self, code: str, message: str, *, file: Path | None = None, line: int | None = None, help: str = ""
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.file, self.line, self.help = code, message, file, line, help

    def __str__(self) -> str:
        text = f"error[{self.code}]: {safe(self.message)}"
        if self.file is not None:
            text += f"\n  --> {one_line(str(self.file))}" + ("" if self.line is None else f":{self.line}")
        return text + (f"\nhelp: {safe(self.help)}" if self.help else "")


def outside(index: int, size: int, what: str, dim: str, file: str, line: int, ignored: int | None = None) -> RunError:
    """SH519: an index that the program computed is no place of a dim. what: the expression of the
    indices; file, line: where they are used."""
    also = "" if ignored is None else f", or {ignored}, which is ignored"
    has = "" if dim == str(size) else f": `{dim}` is {size}"
    more = f"make `{dim}` {index + 1} or more, or keep" if index > 0 and has else "keep"
    return RunError(
        "SH519", f"`{what}` has the index {index}, and must be from 0 to {size - 1}{also}{has}", file=Path(file),
        line=line, help=f"{more} what computes the indices within these numbers",
    )  # fmt: skip


def lacking(error: ImportError, what: str) -> RunError | None:
    """SH517, where `what` needs a package of an extra that is missing or cannot be loaded; None
    where something else could not be imported."""
    package = (error.name or "").partition(".")[0]
    if package not in _EXTRAS:
        return None
    extra, purpose = _EXTRAS[package]
    absent = isinstance(error, ModuleNotFoundError) and error.name == package
    why = "is not installed" if absent else f"cannot be loaded: {error}"
    help = f'`pip install "shardlang[{extra}]"` installs {purpose}'
    return RunError("SH517", f"{what} needs {package}, which {why}", help=help)
