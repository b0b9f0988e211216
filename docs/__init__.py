"""The site: from the pages of this project to a folder that mkdocs builds, and to what it builds of it."""
