"""thin"""
from shardlang.source import Span
class Recovery:
    def __init__(self, tokens, stream, sink):
        self.tokens, self.stream, self.sink = tokens, stream, sink
    def __call__(self, automaton, token, too_deep):
        self.sink.report("SH101", f"unexpected `{self.tokens.source.text[token[1]:token[2]]}`", Span(self.tokens.source, token[1], token[2]))
        return None
