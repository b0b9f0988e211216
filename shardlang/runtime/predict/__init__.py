"""Writes what a trained model gives: values of each example of a set, or text behind prompts."""
