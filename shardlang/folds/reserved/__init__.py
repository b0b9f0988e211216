"""The memory that torch's caching allocator takes from a device for what a rank holds."""
