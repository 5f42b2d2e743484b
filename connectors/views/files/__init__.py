"""Serves states from a file log or an archive, without storing anything.

Archived changes are found by the manifest's key ranges, and by the statistics and Bloom filters of the files. For the
log's newer files, an index in memory says where the changes of each key are (`tail`). The most recently used parts of
files are kept in memory (`row_groups`).
"""
