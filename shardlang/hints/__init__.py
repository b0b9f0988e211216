"""The names and the paths that were probably meant, for the help of errors. Nothing here knows of
programs."""
