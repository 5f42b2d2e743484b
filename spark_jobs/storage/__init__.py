"""The folders in which jobs store files, on any file system that Spark supports, and the manifest of valid files."""
