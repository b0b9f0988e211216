"""Claim: the language server shows mistakes before the next key, and layouts right after: processor time of each
keystroke, by what is edited, in programs of all sizes.

Each edit of a strategy, a model, `train` or an import puts something in or takes something out, and is then taken
back; both are keystrokes. The time is that of the process from the edit to the mistakes. Layouts and the line of the
chosen strategy are timed as the server's child makes them. Each program has a process of its own, and the server's
start is a process with an editor's first messages.

    python benchmarks/keystroke.py [edits of each kind]
"""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from depth import LLAMA, STAGED_405B
from timing import verdict

ROOT = Path(__file__).parent.parent
SEED, START, PUT = 7, 1.0, ("x", "1", " ", "\n", "(", "}", "e", "batch")
KINDS = ("Strategy", "Model", "Train", "Use")
# Limits in milliseconds: of a keystroke, in the median and the 99th percentile; of layouts; and megabytes.
LIMITS = {
    "transformer": (40, 130, 150, 60), "llama on 512": (50, 150, 150, 120), "405B on 16,384": (120, 350, 400, 120),
    "2,000 lines": (50, 200, 150, 120), "1,000 layers, 4 stages": (60, 200, 150, 120),
}  # fmt: skip
RANKS = {"transformer": 8, "llama on 512": 512, "405B on 16,384": 16_384}
LENS = 1_000

BLOCK = """
## Block {i}.
model Block{i}(d: dim, wide: dim = {wide}) {{
  layer up = Linear(d, wide)
  layer gate = Linear(d, wide)
  layer down = Linear(wide, d)
  param scale: [d] = ones()
  param shift: [d] = zeros()

  forward(x: [..., d]) -> [..., d] {{
    normed = x * scale + shift
    a = relu(up(normed))
    b = sigmoid(gate(normed))
    c = a * b
    y = down(c)
    return x + y
  }}
}}
"""
NET = """
model Net {{
{layers}
  layer head = Linear(d, classes)

  forward(x: [batch, d]) -> [batch, classes] {{
{calls}
  }}
}}

strategy data {{
  mesh dp = auto
  split batch over dp
}}

strategy pipe {{
  mesh pp = 4, dp = auto
  split batch over dp
  stages over pp balanced
  microbatches 8
  schedule "1f1b"
}}

train {{
  model = Net()
  data = random(x: [batch, d], label: [batch, classes], batches = 4, seed = 1)
  loss = mse_loss(model(x), label)
  optimizer = sgd(lr = 0.1)
  epochs = 1
}}
"""
HEAD = "use std.nn: Linear\n\ndim batch = 4096, d = 64, classes = 10\n"


def text_of(name: str) -> tuple[str, str | None]:
    """The text of a program, and the strategy that is shown."""
    if name in ("transformer", "llama on 512"):
        file = ROOT / f"examples/{name.partition(' ')[0]}.shard"
        return file.read_text("utf-8"), "three_d" if name == "transformer" else "large"
    if name == "405B on 16,384":
        return LLAMA.format(layers=126, **STAGED_405B), None
    if name == "1,000 layers, 4 stages":
        net = NET.format(layers="  layer blocks[1000] = Block0(d)", calls="    return head(x |> blocks)")
        return HEAD + BLOCK.format(i=0, wide=64) + net, "pipe"
    many = range(110)
    calls = [f"    h{i} = b{i}({f'h{i - 1}' if i else 'x'})" for i in many] + [f"    return head(h{len(many) - 1})"]
    net = NET.format(layers="\n".join(f"  layer b{i} = Block{i}(d)" for i in many), calls="\n".join(calls))
    return HEAD + "".join(BLOCK.format(i=i, wide=128 + 8 * (i % 5)) for i in many) + net, "data"


def edits(text: str, kind: str, count: int) -> Iterator[tuple[int, int, str]]:
    """Places of items of a kind, characters after them that go, and what comes."""
    from shardlang import driver
    from shardlang.diagnostics.diagnostic import Sink
    from shardlang.sources.source import Source

    draw = random.Random(SEED)
    spans = [item.span for item in driver.parse_source(Source("a", text), Sink()).items if type(item).__name__ == kind]
    for _ in range(count if spans else 0):
        span = draw.choice(spans)
        at = draw.randrange(span.start, span.end)
        over = draw.choice((0, 0, 1, 1, 3, 12))
        yield at, min(at + over, span.end), draw.choice(PUT) if not over or draw.random() < 0.5 else ""


def measure(name: str, count: int) -> dict[str, Any]:
    """Milliseconds of keystrokes by kind, of layouts and of a lens, and megabytes, in this process."""
    from shardlang.editor.open_file import OpenFile
    from shardlang.editor.planned import shown
    from shardlang.editor.shown import ShownFigures
    from shardlang.editor.text import TextEdit

    gc.disable()
    text, strategy = text_of(name)
    file = OpenFile("program.shard", text, strategy, RANKS.get(name, 8))
    file.check()
    assert file.mistakes == [], file.mistakes

    def key(edit: TextEdit) -> float:
        begun = time.process_time()
        file.change(edit)
        file.check()
        taken = 1e3 * (time.process_time() - begun)
        gc.collect()  # as the server does, while nothing is typed
        return taken

    found: dict[str, Any] = {"keys": {}}
    for kind in KINDS:
        taken = []
        for start, end, put in edits(text, kind, count):
            taken.append(key(TextEdit(start, end, put)))
            taken.append(key(TextEdit(start, start + len(put), text[start:end])))
        found["keys"][kind] = taken
    assert file.text == text and file.mistakes == [] and file.program is not None and file.checked is not None
    begun = time.process_time()
    for each in shown(file.program, file.checked.tree, strategy, file.ranks):
        found.setdefault("layouts", 1e3 * (time.process_time() - begun))
        if isinstance(each, ShownFigures):
            found["lens"] = 1e3 * (time.process_time() - begun)
            break
    found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found


def start() -> float:
    """Processor seconds of a server from its start to the first mistakes of `digits.shard`, and its end."""
    file = ROOT / "examples/digits.shard"
    item = {"uri": file.as_uri(), "languageId": "shard", "version": 1, "text": file.read_text("utf-8")}
    messages = [
        {"id": 1, "method": "initialize", "params": {"capabilities": {}, "processId": None, "rootUri": None}},
        {"method": "initialized", "params": {}},
        {"method": "textDocument/didOpen", "params": {"textDocument": item}},
    ]
    command = [sys.executable, "-c", "from shardlang.cli.start import main; main()", "lsp"]
    # Modules are compiled once, as where it is installed.
    compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=compiled) as server:
        assert server.stdin is not None and server.stdout is not None
        for message in messages:
            body = json.dumps({"jsonrpc": "2.0", **message}).encode()
            server.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        server.stdin.flush()
        while b"publishDiagnostics" not in server.stdout.readline():
            pass
        server.kill()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(count: int) -> int:
    held = []
    for name, (middle, far, layouts, memory) in LIMITS.items():
        command = [sys.executable, str(Path(__file__)), "--measure", name, str(count)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for kind, taken in found["keys"].items():
            if taken:
                ordered = sorted(taken)
                at = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
                print(f"  {name}, {kind}: median {at[0]:.1f} ms, 99 % within {at[1]:.1f} ms", flush=True)
        every = sorted(time for taken in found["keys"].values() for time in taken)
        held += [
            verdict(f"{name}: a key / {middle} ms", [each / middle for each in every], 1.0),
            verdict(f"{name}: 99 % of keys / {far} ms", [every[int(len(every) * 0.99)] / far], 1.0),
            verdict(f"{name}: layouts / {layouts} ms", [found["layouts"] / layouts], 1.0),
            verdict(f"{name}: the lens / {LENS} ms", [found["lens"] / LENS], 1.0),
            verdict(f"{name}: memory / {memory} MB", [found["memory"] / memory], 1.0),
        ]
    held.append(verdict("start to the first mistakes / 1 s", [start() / START for _ in range(5)], 1.0))
    return 0 if all(held) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2], int(sys.argv[3]))))
    else:
        sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 500))
