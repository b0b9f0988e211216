"""Lines and UTF-16 columns, against an encoder; edits, against the text that they make."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from shardlang.editor.text import TextEdit, TextPlace, edited, moved, offset_of, place_of

TEXTS = st.text(st.sampled_from("ab \n\r\u2028\x0b\x85é\U0001f600"), max_size=30)


def slow_place(text: str, offset: int) -> TextPlace:
    lines = re.split("\r\n|\n|\r", text[:offset])
    # Between `\r` and `\n` the line has not ended yet.
    if text[offset - 1 : offset + 1] == "\r\n" and offset:
        lines = re.split("\r\n|\n|\r", text[: offset - 1])
        return TextPlace(len(lines) - 1, len(lines[-1].encode("utf-16-le")) // 2 + 1)
    return TextPlace(len(lines) - 1, len(lines[-1].encode("utf-16-le")) // 2)


@given(TEXTS, st.data())
def test_places_are_those_of_an_encoder(text: str, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, len(text)))
    place = place_of(text, offset)
    assert place == slow_place(text, offset)
    inside = text[offset - 1 : offset + 1] == "\r\n" and offset > 0
    assert offset_of(text, place) == offset - inside


@given(TEXTS, st.integers(0, 40), st.integers(0, 40))
def test_every_place_has_an_offset_on_its_line(text: str, line: int, column: int) -> None:
    found = offset_of(text, TextPlace(line, column))
    assert 0 <= found <= len(text)
    place = place_of(text, found)
    assert place.line <= line and (place.line < line or place.column <= column)


def test_within_a_pair_of_units_it_is_the_character() -> None:
    assert offset_of("\U0001f600b", TextPlace(0, 1)) == 0 and offset_of("\U0001f600b", TextPlace(0, 2)) == 1


@given(TEXTS, TEXTS, st.data())
def test_what_an_edit_leaves_keeps_its_place(text: str, new: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    edit = TextEdit(start, end, new)
    made = edited(text, edit)
    assert len(made) == len(text) + edit.growth
    for at in (*range(start), *range(end, len(text))):
        assert made[moved(at, edit)] == text[at]
