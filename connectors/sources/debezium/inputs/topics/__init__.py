"""The input from topics: partitions are the parts, and offsets are their progress."""
