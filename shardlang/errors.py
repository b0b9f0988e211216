"""A fault that stops a run and that its user can mend: a `RunError`, with a stable code and the
place of the mistake. That a package is missing is one."""

from __future__ import annotations

from pathlib import Path

from shardlang.display import one_line, safe

# The packages that the compiler does without, and the extra that has each, with its purpose.
_TRAIN = "train", "all that training needs"
_EXTRAS = {"torch": _TRAIN, "numpy": _TRAIN, "safetensors": _TRAIN, "highspy": ("tune", "what `tune` needs")}


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
