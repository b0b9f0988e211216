"""`shardc lsp` over stdio: mistakes, hints, lenses, fixes, form and the page of a plan."""

from __future__ import annotations

import subprocess
from functools import partial

import pytest
from lsprotocol import types as lsp

from tests import mdtest
from tests.lsp.conftest import COMMAND, EXAMPLES, WHOLE, Editor

DIGITS = (EXAMPLES / "digits.shard").read_text("utf-8")

NET = """\
dim batch = 4, d = 8
model Net {
  forward(x: [batch, d]) -> [batch, d] { #
    return dropout(x, p = 0.5, q = 1)
  }
}
"""


@pytest.mark.asyncio
async def test_a_mistake_is_shown_where_editors_count_it_and_goes(editor: Editor) -> None:
    text = NET.replace("{ #", "{ # \U0001f600").replace("p = 0.5", 'p = "\U0001f600"')
    (found,) = await editor.open(text)
    assert found.code == "SH220" and found.range.start == lsp.Position(3, 32)
    assert found.code_description is not None and found.code_description.href.startswith("file://")
    (found,) = await editor.type(3, 32, "", len("q = 1"))
    assert found.code != "SH220"


@pytest.mark.asyncio
async def test_hints_and_lenses_come_and_stay_while_a_mistake_comes_and_goes(editor: Editor) -> None:
    assert await editor.open(DIGITS) == []
    lenses = await editor.lenses(4)
    assert lenses[2] == "8 ranks (dp 4, mp 2): 81.2 kB at the peak, 29.8 kB sent a step"
    assert lenses[0].endswith("(choose)")
    hints = await editor.hints()
    assert "batch@dp, hidden@mp" in [text for _, text in hints]
    (found,) = await editor.type(1, 0, "dimm x = 3\n")
    assert found.code == "SH101" and await editor.lenses(4) == lenses
    assert await editor.hints() == [(line + 1, text) for line, text in hints]


@pytest.mark.asyncio
async def test_a_click_on_a_lens_shows_another_strategy(editor: Editor) -> None:
    await editor.open(DIGITS)
    await editor.lenses(4)
    arguments = [editor.uri, "tensor_parallel", 4]
    await editor.client.workspace_execute_command_async(lsp.ExecuteCommandParams("shard.choose", arguments))
    lenses = await editor.once(partial(editor.lenses, 4), lambda found: found[1].startswith("4 ranks (mp 4)"))
    assert not lenses[1].endswith("(choose)") and lenses[2].endswith("(choose)")


@pytest.mark.asyncio
async def test_hover_tells_a_layout(editor: Editor) -> None:
    await editor.open(DIGITS)
    await editor.lenses(4)
    line = DIGITS[: DIGITS.index("h = up(image)")].count("\n")
    found = await editor.client.text_document_hover_async(lsp.HoverParams(editor.document, lsp.Position(line, 4)))
    assert found is not None and isinstance(found.contents, lsp.MarkupContent)
    assert "`f32[batch@dp, hidden@mp]`" in found.contents.value


@pytest.mark.asyncio
async def test_a_fix_is_offered_and_mends(editor: Editor) -> None:
    end = "mp\n}\n\nstrategy sharded"
    found, *_ = await editor.open(DIGITS.replace(end, end.replace("mp", "mq")))
    context = lsp.CodeActionContext([found])
    asked = lsp.CodeActionParams(editor.document, found.range, context)
    (fix, *_) = await editor.client.text_document_code_action_async(asked) or []
    assert isinstance(fix, lsp.CodeAction) and fix.title == "write `mp`" and fix.edit is not None
    assert fix.edit.changes is not None
    (edit,) = fix.edit.changes[editor.uri]
    start, end = edit.range.start, edit.range.end
    assert await editor.type(start.line, start.character, edit.new_text, end.character - start.character) == []


@pytest.mark.asyncio
async def test_a_file_and_a_part_of_it_are_formatted(editor: Editor) -> None:
    await editor.open(DIGITS.replace("dim batch = 64", "dim batch=64").replace("mp = 2", "mp=2"))
    options = lsp.FormattingOptions(2, True)
    every = await editor.client.text_document_formatting_async(lsp.DocumentFormattingParams(editor.document, options))
    assert len(every or []) == 2
    some = lsp.DocumentRangeFormattingParams(
        editor.document, lsp.Range(lsp.Position(0, 0), lsp.Position(10, 0)), options
    )
    assert len(await editor.client.text_document_range_formatting_async(some) or []) == 1


@pytest.mark.asyncio
async def test_edits_out_of_order_beyond_the_text_and_of_closed_files(editor: Editor) -> None:
    await editor.open("dim a = 1\n")
    old = lsp.TextDocumentContentChangePartial(WHOLE, "nonsense")
    editor.send([old], 0)  # older than what is there
    await editor.type(500, 70, "dim b = a\n")
    assert await editor.type(0, 4, "\U0001f600", over=900) != []
    gone = lsp.VersionedTextDocumentIdentifier(9, "file:///nowhere.shard")
    editor.client.text_document_did_change(lsp.DidChangeTextDocumentParams(gone, [old]))
    nothing = lsp.HoverParams(lsp.TextDocumentIdentifier("file:///nowhere.shard"), lsp.Position(3, 3))
    assert await editor.client.text_document_hover_async(nothing) is None
    editor.version += 1
    editor.send([lsp.TextDocumentContentChangeWholeDocument("dim a = 1\n")], editor.version)
    assert await editor.mistakes() == []
    editor.client.text_document_did_close(lsp.DidCloseTextDocumentParams(editor.document))
    assert list((await editor.told(lambda found: found.version is None)).diagnostics) == []


@pytest.mark.asyncio
async def test_the_page_of_a_plan(editor: Editor) -> None:
    await editor.open(DIGITS)
    asked = lsp.ExecuteCommandParams("shard.report", [editor.uri])
    found = await editor.client.workspace_execute_command_async(asked)
    assert found["html"].startswith("<!doctype html>") and "digits.shard" in found["html"]
    await editor.type(0, 0, "dimm x = 3\n")
    assert (await editor.client.workspace_execute_command_async(asked))["html"] is None


def test_it_says_what_it_is_for_where_no_editor_starts_it() -> None:
    for file in ("/dev/null", __file__):
        with open(file) as given:
            ended = subprocess.run(COMMAND, stdin=given, capture_output=True, text=True, check=False)
        assert ended.returncode == 2 and "it speaks with an editor" in ended.stderr


@pytest.mark.asyncio
async def test_no_mistake_hides_another(editor: Editor) -> None:
    page = (EXAMPLES.parent / "specs/diagnostics.md").read_text("utf-8").partition("## One mistake hides no other")[2]
    shown = [block.text for block in mdtest.blocks(page)[:3]]
    found = [await editor.open(text) for text in shown]
    assert [len(each) for each in found] == [3, 7, 0]
    assert [each.code for each in found[0]] == ["SH103", "SH200", "SH307"]
