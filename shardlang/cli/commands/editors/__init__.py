"""Commands for editors and shells."""
