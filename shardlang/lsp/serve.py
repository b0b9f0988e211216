"""`shardc lsp`: the language server over stdio. Its answers are made by `shardlang/editor/`."""

from __future__ import annotations

import asyncio
import gc
import sys
from threading import Event

from pygls.io_ import StdoutWriter, run_async

from shardlang.editor.hovered import Pages
from shardlang.lsp import features, naming
from shardlang.lsp.server import ShardServer


def serve(pages: Pages) -> None:
    """Speaks the protocol over standard input and output until the editor ends it, or itself.
    pages: what the language has under a name."""
    server = ShardServer(pages)
    features.register(server)
    naming.register(server)
    gc.freeze()
    asyncio.run(_serve(server))


async def _serve(server: ShardServer) -> None:
    """Without threads: a fork of this process has to be whole."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    # Without a buffer (PYTHONUNBUFFERED) a signal would end a write with a part of an answer.
    with open(sys.stdout.fileno(), "wb", closefd=False) as output:
        server.protocol.set_writer(StdoutWriter(output))
        try:
            await run_async(Event(), reader, server.protocol)
        finally:
            for uri in list(server.sessions):
                server.sessions.pop(uri).close()
