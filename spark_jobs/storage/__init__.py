"""Where jobs keep files: a folder on any file system of Spark's, and the manifest that lists the valid files."""
