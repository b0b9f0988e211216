"""What the package writes to a disk: whose a file is, who writes there now, the files of a run, and
folders that go with their command."""
