"""Fourteen models that come in whole: ten of `transformers`, four from plain torch files."""
