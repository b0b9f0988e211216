"""The rules of a strategy, with names looked up and conflicts settled."""
