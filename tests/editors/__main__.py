"""`python -m tests.editors [--pictures FOLDER]`: all that is tested of editors, with VS Code itself, whose pictures
come into the folder. Other arguments go to pytest. What cannot be installed is skipped, with its reason."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PLACES = [HERE, HERE.parent / "lsp"]

if __name__ == "__main__":
    sys.exit(pytest.main(["-rs", "-o", "python_files=test_*.py in_code.py", *map(str, PLACES), *sys.argv[1:]]))
