"""Commands that bring weights and checkpoints into the forms of other libraries."""
