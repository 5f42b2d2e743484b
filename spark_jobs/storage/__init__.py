"""Where jobs keep files: any file system of Spark's, and the manifest that says which of its files count."""
