"""The bytes that a plan keeps and sends, and the report that shows it."""
