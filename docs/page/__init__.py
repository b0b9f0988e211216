"""The page that programs are opened in: the compiler and an editor, in the browser alone."""
