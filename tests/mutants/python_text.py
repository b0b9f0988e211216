"""Faults of the page that writes literals, comments and docstrings, and of names: texts of a program that are more."""

from __future__ import annotations

from tests.mutants.fault import Fault

TEXTS = ("emit/test_python_text.py",)

FAULTS = (
    Fault("a comment ends where the text's line does", "texts as code", "terminal/display.py",
          'return safe(text).replace("\\n", "<U+000A>")', "return safe(text)", TEXTS),
    Fault("a comment holds the text as it is", "texts as code", "terminal/display.py",
          'return safe(text).replace("\\n", "<U+000A>")', "return text", TEXTS),
    Fault("a literal ends at the text's quote", "texts as code", "ops/python_text.py",
          'QUOTE: f"\\\\{QUOTE}", ', "", TEXTS),
    Fault("a literal holds control characters", "what a reader takes for the end of a line", "ops/python_text.py",
          "    if character.isprintable():\n        return _ESCAPES.get(character, character)\n",
          "    return _ESCAPES.get(character, character)\n", TEXTS),
    Fault("a docstring ends at the text's quotes", "texts as code", "ops/python_text.py",
          '"".join(_ESCAPES.get(c, c) for c in one_line(line))', "one_line(line)", TEXTS),
    Fault("a statement is cited as it is", "texts as code", "emit/text/lines.py",
          "texts = [comment(block.title, room)] if block.title else []",
          'texts = [f"# {block.title}"] if block.title else []', ("hostile/test_subset.py",)),
    Fault("a parameter is always an attribute", "names that Python has uses for", "emit/text/names.py",
          'return not (keyword.iskeyword(name) or name.startswith("_"))', "return not keyword.iskeyword(name)",
          ("emit/test_emit.py", "end_to_end/test_names.py")),
    Fault("an axis is always a keyword argument", "axes called as Python's keywords", "emit/header.py",
          "if all(is_plain(name) for name, _ in sizes):", "if True:",
          ("end_to_end/test_names.py",)),
    Fault("a mistake of a run is shown as it is", "a terminal that obeys a name", "errors.py",
          '{safe(self.message)}"', '{self.message}"', ("cli/test_shown.py",)),
)  # fmt: skip
