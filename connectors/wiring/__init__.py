"""Opens what the configuration names: the database, the changelog's store, and the entities.

Only these modules know which folder implements which `kind` of source or sink.
"""
