"""What a plan keeps and sends, in bytes, and the report that shows it."""
