"""The frozen values that passes take and give."""
