"""Faults of words in csv data, and of how many diagnostics are shown."""

from __future__ import annotations

from tests.mutants.fault import Fault

SOURCES = ("check/test_sources.py",)
WORDS = ("runtime/test_csv_words.py",)
SHOWN = ("rendering/test_renderers.py",)

FAULTS = (
    Fault("a word may have blanks at an end", "a word that no cell is", "check/model/words.py",
          "if word != word.strip():", "if word is None:", SOURCES),
    Fault("a word is listed twice", "two numbers of a word", "check/model/words.py", "if word in found:",
          "if word in ():", SOURCES),
    Fault("other words of a most frequent few are refused", "`unknown` where nothing is said", "check/model/words.py",
          'found.get("unknown", not listed)', 'found.get("unknown", False)', SOURCES),
    Fault("a hash below 0", "`hashed(0)`", "check/model/words.py", "1 <= count <= _MOST_HASHED",
          "count <= _MOST_HASHED", SOURCES),
    Fault("unknown words have no row", "a table that is a row short", "check/values.py",
          "(len(self.listed) or self.most) + self.unknown", "(len(self.listed) or self.most)", SOURCES),
    Fault("a dim of a model numbers words", "SH210 without help", "check/constants.py",
          '_WORDS if isinstance(value, Words) else ""', '""', SOURCES),
    Fault("equally frequent words are in any order", "numbers that change from run to run", "runtime/words.py",
          "key=lambda word: (-counts[word], word)", "key=lambda word: -counts[word]", WORDS),
    Fault("unknown words follow the known ones", "a number that depends on the file", "runtime/words.py",
          "(len(self.known) if self.words.listed else self.words.most)", "len(self.known)", WORDS),
    Fault("capitals do not count", "hashes of two words", "runtime/words.py",
          "zlib.crc32(word.encode()) % self.words.hashed", "zlib.crc32(word.lower().encode()) % self.words.hashed",
          WORDS),
    Fault("as many words are the same words", "weights of other words", "runtime/words.py",
          "zlib.crc32(json.dumps(self.known).encode())", "zlib.crc32(json.dumps(len(self.known)).encode())", WORDS),
    Fault("words are never compared", "weights of other words", "runtime/words.py",
          "if not isinstance(there, dict) or here == there:", "if not isinstance(there, dict) or file:", WORDS),
    Fault("blanks around a word count", "a word that is two", "runtime/data/csv_columns.py",
          "cells[at].strip(), len(first))", "cells[at], len(first))", WORDS),
    Fault("eval has words of its own", "numbers that training did not know", "runtime/data/csv_columns.py",
          "known.get(how.name) or Vocabulary.of(how, occurring)", "Vocabulary.of(how, occurring)", WORDS),
    Fault("each column counts its own words", "fields of one dim", "runtime/data/csv_columns.py",
          "own = [at for other, at in places.items() if worded[other].name == how.name]",
          "own = [at for other, at in places.items() if other == name]", WORDS),
    Fault("the first are shown, however slight", "an error among hundreds of warnings", "diagnostics/rendered.py",
          "(_SEVERITIES.index(found[at].severity), at)", "at", SHOWN),
    Fault("one of the rest is not counted", "how many are not shown", "diagnostics/rendered.py",
          "sorted(ordered[SHOWN:])", "sorted(ordered[SHOWN + 1 :])", SHOWN),
    Fault("the shown are in the order of their severity", "the order of the file", "diagnostics/rendered.py",
          "for at in sorted(ordered[:SHOWN])]", "for at in ordered[:SHOWN]]", SHOWN),
)  # fmt: skip
