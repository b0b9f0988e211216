"""The files that the package writes: whose each is, who writes there now, those of a run, and
folders that go with their command."""
