"""Python files of users: the locks of those that were verified, and how they are loaded."""
