"""A fault that stops a run and that its user can mend: a `RunError`, with a stable code and the
place of the mistake."""

from __future__ import annotations

from pathlib import Path

from shardlang.display import one_line, safe


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
