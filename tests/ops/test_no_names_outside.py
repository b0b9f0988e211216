"""What is known of an operator stands in its declaration: outside of `ops/` no module knows operators by name.

What each means on one device (interpret/meaning/) and what emitted programs call (runtime/functions/) is by name, too.
So is what three of those functions exchange, where the emitted text is read by itself (matched/table.py): a table made
of the declarations would find no mistake in them.
"""

from __future__ import annotations

import ast

import shardlang.ops.all_families  # noqa: F401  (fills the registry)
from shardlang.ops.declaration import REGISTRY
from tests.test_house_rules import MODULES, PACKAGE

# The importer says each call of ATen, and each idiom of several, by an operator of the language.
MEANINGS = ("ops/", "interpret/meaning/", "runtime/functions/", "matched/table.py", "importing/")
# Words that are an operator's name and mean something else: (module, word) -> what it is there.
OTHER_WORDS = {
    ("check/declared.py", "pad"): "an argument of `tokenizer` and `bytes`",
    ("check/model/words.py", "pad"): "that argument",
    ("check/train/settings.py", "log"): "the setting `log`",
    ("cli/commands/ranks/generation.py", "top_k"): "the option `--top-k`",
    ("cost/calibrated.py", "attention"): "a member of a profile, for all kernels of that kind",
    ("cost/profile.py", "attention"): "likewise",
    ("editor/words/uses.py", "log"): "the setting `log`",
    ("emit/evaluate.py", "stack"): "torch's, in the emitted text",
    ("emit/settings.py", "log"): "that setting in an emitted program",
    ("emit/text/names.py", "sum"): "a function of Python's, which no variable may hide",
    ("emit/text/names.py", "slice"): "likewise",
    ("facts/optimizers.py", "mean"): "what Adam keeps, in checkpoints",
    ("facts/optimizers.py", "square"): "likewise",
    ("facts/optimizers.py", "sum"): "what Adagrad keeps, in checkpoints",
    ("runtime/calibrate/machine.py", "attention"): "that member of a profile",
    ("runtime/comm/blocks.py", "sum"): "how a collective reduces",
    ("runtime/comm/primitives.py", "sum"): "likewise",
    ("runtime/comm/ready.py", "sum"): "likewise",
    ("runtime/comm/gloo/rounds.py", "sum"): "likewise",
    ("views/program_text.py", "attention"): "a kind of work, for all kernels of that kind",
    ("runtime/state/optimizers.py", "mean"): "what Adam keeps, in checkpoints",
    ("runtime/state/optimizers.py", "square"): "likewise",
}


def _found() -> dict[tuple[str, str], list[int]]:
    """(module, name) -> the lines on which an operator's name is a text."""
    found: dict[tuple[str, str], list[int]] = {}
    for path in MODULES:
        module = path.relative_to(PACKAGE).as_posix()
        if module.startswith(MEANINGS):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in REGISTRY:
                found.setdefault((module, node.value), []).append(node.lineno)
    return found


def test_no_operator_is_known_by_name() -> None:
    named = [f"{module}:{lines[0]}: {name}" for (module, name), lines in _found().items()
             if (module, name) not in OTHER_WORDS]  # fmt: skip
    assert not named, "make it a field of the declaration:\n" + "\n".join(named)


def test_the_exceptions_are_needed() -> None:
    assert set(OTHER_WORDS) - set(_found()) == set()
