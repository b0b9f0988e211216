"""Deliberate faults in the compiler and its runtime, and the tool that sees whether the suite catches each one."""
