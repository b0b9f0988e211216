"""`python -m tests.machines`: all tests on a real Slurm and on hosts of their own network."""

import os
import sys

import pytest

os.environ["SHARDLANG_MACHINES"] = "all"
sys.exit(pytest.main(["tests/machines", "-v", *sys.argv[1:]]))
