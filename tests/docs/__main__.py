"""`python -m tests.docs`: the site in chromium, without a network: its search, and the editor that programs open in."""

import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main(["-n", "0", str(Path(__file__).with_name("in_chromium.py")), *sys.argv[1:]]))
