"""The packages that every rank needs, imported before all else of the runtime.

Where one is missing and an emitted program is being run, this ends the program and says what to
install. Whoever else imports the runtime gets the ImportError, and says so himself."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from shardlang.disk.overwrite_guard import EMITTED, is_own
from shardlang.errors import lacking
from shardlang.terminal.signals import FAILED

_NEEDED = ("torch", "numpy", "safetensors")


def _require() -> None:
    """ImportError where one cannot be imported, and no emitted program is being run."""
    try:
        for name in _NEEDED:
            importlib.import_module(name)
    except ImportError as error:
        file = getattr(sys.modules.get("__main__"), "__file__", None)
        lack = lacking(error, "the program") if file and is_own(Path(file), EMITTED) else None
        if lack is None:
            raise
        print(lack, file=sys.stderr)
        sys.exit(FAILED)


_require()
