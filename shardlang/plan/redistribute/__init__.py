"""The cheapest way from one layout of a value to others."""
