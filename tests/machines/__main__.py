"""`python -m tests.machines`: all tests on a real Slurm and on hosts of their own network."""

import sys

import pytest

sys.exit(pytest.main(["tests/machines", "-v", *sys.argv[1:]]))
