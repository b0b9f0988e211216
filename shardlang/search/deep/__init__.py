"""Programs with many layers that are alike: what few of them tell of all points."""
