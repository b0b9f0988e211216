"""Steps that the language has no word for -> operators of the user's own, one for each piece."""
