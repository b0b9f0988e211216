"""A torch module -> its steps: traced, in one form, with idioms as one step."""
