"""`shardc lsp` over stdio: what goes by names."""

from __future__ import annotations

from pathlib import Path

import pytest
from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException

from tests.lsp.conftest import EXAMPLES, Editor

TRANSFORMER = (EXAMPLES / "transformer.shard").read_text("utf-8")
DIGITS = (EXAMPLES / "digits.shard").read_text("utf-8")


def place(text: str, found: str, more: int = 0) -> lsp.Position:
    """Where a text begins in another, and `more` characters on."""
    at = text.index(found) + more
    return lsp.Position(text.count("\n", 0, at), at - text.rfind("\n", 0, at) - 1)


def line(text: str, at: lsp.Range) -> str:
    return text.splitlines()[at.start.line]


@pytest.mark.asyncio
async def test_a_name_leads_to_its_declaration_and_to_its_uses(editor: Editor) -> None:
    await editor.open(DIGITS)
    at = place(DIGITS, "h = up(image)", 4)
    found = await editor.client.text_document_definition_async(lsp.DefinitionParams(editor.document, at))
    assert isinstance(found, lsp.Location) and line(DIGITS, found.range).strip().startswith("layer up =")
    context = lsp.ReferenceContext(include_declaration=False)
    uses = await editor.client.text_document_references_async(lsp.ReferenceParams(context, editor.document, at))
    assert [each.range.start for each in uses or []] == [at]


@pytest.mark.asyncio
async def test_a_layer_of_the_library_leads_into_it_and_is_never_renamed(editor: Editor) -> None:
    await editor.open(DIGITS)
    at = place(DIGITS, "= Linear(", 3)
    found = await editor.client.text_document_definition_async(lsp.DefinitionParams(editor.document, at))
    assert isinstance(found, lsp.Location) and found.uri.endswith("/stdlib/nn.shard")
    text = Path(found.uri.removeprefix("file://")).read_text("utf-8")
    assert line(text, found.range).startswith("model Linear")
    with pytest.raises(JsonRpcException, match="std"):
        await editor.client.text_document_prepare_rename_async(lsp.PrepareRenameParams(editor.document, at))


@pytest.mark.asyncio
async def test_a_dim_gets_another_name_everywhere_or_a_reason_is_told(editor: Editor) -> None:
    await editor.open(DIGITS)
    at = place(DIGITS, "hidden")
    with pytest.raises(JsonRpcException, match="word of the language"):
        await editor.client.text_document_rename_async(lsp.RenameParams(editor.document, at, "model"))
    found = await editor.client.text_document_rename_async(lsp.RenameParams(editor.document, at, "wide"))
    assert found is not None and found.document_changes is not None
    (change,) = found.document_changes
    assert isinstance(change, lsp.TextDocumentEdit) and change.text_document.version == editor.version
    text = DIGITS
    for edit in sorted(change.edits, key=lambda edit: edit.range.start.line, reverse=True):
        assert isinstance(edit, lsp.TextEdit)
        lines = text.splitlines(keepends=True)
        row, start, end = edit.range.start.line, edit.range.start.character, edit.range.end.character
        lines[row] = lines[row][:start] + edit.new_text + lines[row][end:]
        text = "".join(lines)
    assert text == DIGITS.replace("hidden", "wide")
    editor.version += 1
    editor.send([lsp.TextDocumentContentChangeWholeDocument(text)], editor.version)
    assert await editor.mistakes() == []


@pytest.mark.asyncio
async def test_a_selector_marks_what_it_covers(editor: Editor) -> None:
    text = DIGITS.replace("strategy both {", "strategy both {\n  at up: recompute")
    await editor.open(text)
    asked = lsp.DocumentHighlightParams(editor.document, place(text, "at up: rec", 3))
    found = await editor.client.text_document_document_highlight_async(asked)
    assert "layer up" in " ".join(line(text, each.range) for each in found or [])


@pytest.mark.asyncio
async def test_axes_are_offered_after_over_and_arguments_in_a_call(editor: Editor) -> None:
    text = DIGITS.replace("split hidden over mp", "split hidden over m", 1)
    await editor.open(text)
    at = place(text, "split hidden over m\n", len("split hidden over m"))
    found = await editor.client.text_document_completion_async(lsp.CompletionParams(editor.document, at))
    assert isinstance(found, list) and {"mp"} == {item.label for item in found} - {"dp"}
    edit = next(item for item in found if item.label == "mp").text_edit
    assert isinstance(edit, lsp.TextEdit) and edit.range.start.character == at.character - 1
    at = place(text, "Linear(", len("Linear("))
    found = await editor.client.text_document_completion_async(lsp.CompletionParams(editor.document, at))
    assert isinstance(found, list) and {"in", "out", "bias"} <= {item.label for item in found}
    help = await editor.client.text_document_signature_help_async(lsp.SignatureHelpParams(editor.document, at))
    assert help is not None and help.signatures[0].label.startswith("Linear(in: dim") and help.active_parameter == 0


@pytest.mark.asyncio
async def test_outline_folding_and_roles(editor: Editor) -> None:
    await editor.open(DIGITS)
    symbols = await editor.client.text_document_document_symbol_async(lsp.DocumentSymbolParams(editor.document))
    assert {"both", "train"} <= {each.name for each in symbols or []}
    folds = await editor.client.text_document_folding_range_async(lsp.FoldingRangeParams(editor.document))
    lines = DIGITS.splitlines()
    assert folds and {lines[each.start_line][-1:] for each in folds if each.kind == "region"} == {"{"}
    tokens = await editor.client.text_document_semantic_tokens_full_async(lsp.SemanticTokensParams(editor.document))
    assert tokens is not None and len(tokens.data) % 5 == 0
    row, column, words = 0, 0, []
    for at in range(0, len(tokens.data), 5):
        down, right, length = tokens.data[at : at + 3]
        row, column = row + down, right if down else column + right
        words.append(lines[row][column : column + length])
    assert {"hidden", "Linear", "up", "dp", "both"} <= set(words) and all(word.strip() == word for word in words)


@pytest.mark.asyncio
async def test_pages_of_words_layers_axes_and_strategies(editor: Editor) -> None:
    await editor.open(DIGITS)
    await editor.lenses(4)

    async def told(found: str, more: int = 0) -> str:
        asked = lsp.HoverParams(editor.document, place(DIGITS, found, more))
        hover = await editor.client.text_document_hover_async(asked)
        assert hover is not None and isinstance(hover.contents, lsp.MarkupContent)
        return hover.contents.value

    both = DIGITS.index("strategy both {")
    assert "8 ranks (dp 4, mp 2)" in await told("strategy both", len("strategy "))
    assert "Splits dims over axes" in await told("split hidden")
    assert "`up`" in await told("layer up", len("layer ")) and "A rank holds" in await told("layer up", len("layer "))
    assert "As torch.optim" in await told("optimizer = ", len("optimizer = "))
    mesh = DIGITS[both:].partition("\n")[2].partition("\n")[0]
    assert "2 ranks in each of 4 groups" in await told(mesh, mesh.index("mp"))


@pytest.mark.asyncio
async def test_a_file_of_the_library_shows_the_layer_that_one_came_from(editor: Editor) -> None:
    await editor.open(TRANSFORMER)
    asked = lsp.ExecuteCommandParams("shard.choose", [editor.uri, "model_parallel", 4])
    await editor.client.workspace_execute_command_async(asked)
    at = place(TRANSFORMER, "layer encoder = Encoder", len("layer encoder = "))
    found = await editor.client.text_document_definition_async(lsp.DefinitionParams(editor.document, at))
    assert isinstance(found, lsp.Location)
    library = editor.beside(found.uri)
    text = Path(found.uri.removeprefix("file://")).read_text("utf-8")
    assert await library.open(text) == []
    hints = await library.once(library.hints, bool)
    # `batch` is not split, and `heads` is, in the product that makes queries.
    rows = [
        text[: text.index(f"model {name}(")].count("\n")
        for name in ("Projection", "DecoderBlock", "Encoder", "Decoder")
    ]
    assert any(rows[0] < row and "heads@mp" in told for row, told in hints)
    assert not any(rows[1] < row < rows[2] or rows[3] < row for row, _ in hints)
    lenses = await library.client.text_document_code_lens_async(lsp.CodeLensParams(library.document)) or []
    assert [lens.command.title for lens in lenses if lens.command] == ["Translator.encoder of digits.shard"]
    editor.client.text_document_did_close(lsp.DidCloseTextDocumentParams(editor.document))
    assert await library.once(library.hints, lambda found: not found) == []


@pytest.mark.asyncio
async def test_another_name_that_would_be_a_mistake_is_refused(editor: Editor) -> None:
    text = (EXAMPLES / "unet.shard").read_text("utf-8")
    assert await editor.open(text) == []
    # A dim of the result of a convolution, which only types tell apart from that of the file.
    asked = lsp.RenameParams(editor.document, place(text, "height"), "high")
    with pytest.raises(JsonRpcException, match="With `high` the program would have a mistake in line"):
        await editor.client.text_document_rename_async(asked)
