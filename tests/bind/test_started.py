"""The same losses in a notebook that is executed, and in a script that torchrun starts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests import warm
from tests.bind.test_losses import DIGITS, ROOT
from tests.end_to_end.curves import Figures, RunOf, figures

TWO, ONE = RunOf("data_parallel", 2), RunOf("data_parallel", 1)
LOOP = """
def train(made, count):
    net = bind(made)
    optimizer = net.optimizer(torch.optim.SGD, lr=0.1, momentum=0.9)
    told = []
    for batch in itertools.islice(net.batches(1), count):
        told.append(net.step(batch))
        optimizer.step()
        net.stepped()
    return [figures["loss"] for figures in told]
"""
IMPORTS = "import itertools, json, sys, torch, shardlang\nfrom shardlang.torch import bind, launch\n"


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[RunOf, Figures]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        return figures(DIGITS, [ONE, TWO], tmp_path_factory.mktemp("theirs"))


def executed(*cells: str) -> list[Any]:
    """What the cells of a notebook print, as JSON each, in a kernel of its own."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=None, kernel_name="python3").execute(cwd=str(ROOT))
    texts = ["".join(o["text"] for o in cell.outputs if o.get("name") == "stdout") for cell in notebook.cells]
    return [json.loads(text.splitlines()[-1]) for text in texts if text]


def test_a_notebook(theirs: Mapping[RunOf, Figures], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel has threads, and has computed with several and by autograd before it forks."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    busy = "torch.set_num_threads(2)\nx = torch.rand(600, 600, requires_grad=True)\n(x @ x).sum().backward()"
    both = "made = {ranks: shardlang.compile(digits, ranks=ranks, strategy='data_parallel') for ranks in (1, 2)}"
    shown, two, again, one = executed(
        IMPORTS + "%load_ext shardlang\n" + busy,
        f"%%shard digits\n{DIGITS}",
        "print(json.dumps(type(digits).__name__))",
        LOOP + both,
        "def shown(made):\n    print('step', 1)\n    return train(made, 8)\n"
        "print(json.dumps(launch(shown, made[2], ranks=2)))",
        "print(json.dumps(launch(train, made[2], 8, ranks=2)))",
        "torch.set_num_threads(1)\nprint(json.dumps(train(made[1], 8)))",
    )
    assert shown == "Source"
    assert two == again == [theirs[TWO].curve()] * 2
    assert one == theirs[ONE].curve()


def test_a_script_under_torchrun(theirs: Mapping[RunOf, Figures], tmp_path: Path) -> None:
    (tmp_path / "digits.shard").write_text(DIGITS)
    made = "made = shardlang.compile('digits.shard', ranks=2, strategy='data_parallel')\n"
    told = "told = train(made, 8)\nopen(f'rank-{os.environ[\"RANK\"]}', 'w').write(json.dumps(told))\n"
    (tmp_path / "loop.py").write_text("import os\n" + IMPORTS + LOOP + made + told)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "loop.py"]
    done = warm.run(torchrun, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        assert json.loads((tmp_path / f"rank-{rank}").read_text()) == theirs[TWO].curve()
