"""A plan and hardware -> seconds and bytes of a step as they are predicted."""
