"""Each script in benchmarks/ and benchmarks/gpu/ that makes a claim is run by its folder's command, and has its line in
the README; those for a GPU run whole in tiny sizes on the CPU.
"""

from __future__ import annotations

import os
import re
import sys

import pytest
import torch

from benchmarks.__main__ import HERE, NAMES
from benchmarks.gpu.__main__ import NAMES as ON_A_GPU
from tests import warm

ROOT = HERE.parent
LISTED = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
# In one process, which imports once what they share. First the sides by hand of nets without dropout: `on_ranks` ends
# where they give other losses than ours.
ALL = """
import importlib, sys
sys.argv[1:] = ["--device", "cpu"]
from benchmarks.gpu.__main__ import NAMES
from benchmarks.gpu.nets import gpt2_124m, llama_8b
from benchmarks.gpu.place import place
for net in (llama_8b(place(), precision="f32"), gpt2_124m(place(), precision="f32")):
    net.place.on_ranks(lambda: {"ours": net.ours(False), "by hand": net.by_hand(False)})
for name in NAMES:
    print("script", name, flush=True)
    assert importlib.import_module("benchmarks.gpu." + name).main() == 0
"""
VERDICT = re.compile(r": ratio \S+ \(limit .+\): (held|not judged)$", re.MULTILINE)


def test_scripts() -> None:
    for folder, names in ((HERE, NAMES), (HERE / "gpu", ON_A_GPU)):
        assert {path.stem for path in folder.glob("*.py") if path.read_text().startswith('"""Claim: ')} == set(names)


def test_listed() -> None:
    claims, _, _ = (HERE / "README.md").read_text().partition("## Measured")
    assert tuple(LISTED.findall(claims)) == (*NAMES, *ON_A_GPU)


@pytest.mark.slow
def test_scripts_for_a_gpu_run_in_tiny_sizes_on_the_cpu() -> None:
    done = warm.run([sys.executable, "-c", ALL], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    said = dict(part.split("\n", 1) for part in done.stdout.split("script ")[1:])
    assert tuple(said) == ON_A_GPU and all(VERDICT.search(text) for text in said.values()), done.stdout


def test_without_a_gpu() -> None:
    done = warm.run([sys.executable, "-m", "benchmarks.gpu"], cwd=ROOT, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    why = "there is none" if torch.backends.cuda.is_built() else "this torch is built without CUDA"
    assert done.returncode == 2 and not done.stdout
    assert done.stderr == (
        f"1 rank needs 1 GPU, and {why}; with `--device cpu` the scripts run in tiny sizes, and no limit is judged\n"
    )
