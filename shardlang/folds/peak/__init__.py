"""A plan -> the most bytes that a rank holds at one time of a step, when, and of what."""
