"""Opens the database and the changelog's store that the configuration names, and resolves its entities.

Only these modules know which folder implements which `kind` of source or sink.
"""
