"""What the rules of a strategy say, with names looked up and conflicts settled."""
