"""Explanations of plans: two beside each other, why a value is laid out as it is, a page of one."""
