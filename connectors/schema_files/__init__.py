"""Schema files: the contracts of entities as they stand in a folder, what came before them, and the verdict on both."""
