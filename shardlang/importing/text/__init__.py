"""Models -> text: names of dims and values, statements, the name map."""
