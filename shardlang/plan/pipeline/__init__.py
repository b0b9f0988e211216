"""Stages of the model, and the schedule that runs them."""
