"""Memory that a step frees is there for the next one, without being mapped anew."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

# A page is 4 KiB here also where the system would give 2 MiB at once: PR_SET_THP_DISABLE of prctl(2).
STEPS = """
import ctypes, resource, sys
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)
import torch
from shardlang.runtime.comm.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def step():
    tensors = [torch.zeros(2**18) for _ in range(20)]

step()
before = faults()
for _ in range(10):
    step()
print(faults() - before)
"""
# What mallopt(3) begins with. Without these the C library's own raise them to the largest tensor freed so far, which
# is now one while torch is imported, and now another.
SETTINGS = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
PAGES_OF_A_STEP = 20 * 2**20 // 4096


def page_faults(how: str) -> int:
    """Of ten steps that each fill 20 MiB and free them."""
    done = subprocess.run(
        [sys.executable, "-c", STEPS, how], env=os.environ | SETTINGS, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such settings")
def test_freed_memory_is_kept() -> None:
    assert page_faults("as it is") > PAGES_OF_A_STEP
    assert page_faults("kept") < PAGES_OF_A_STEP / 10
