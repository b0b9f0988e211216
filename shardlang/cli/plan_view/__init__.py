"""The report of a plan as text for people."""
