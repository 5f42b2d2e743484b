"""Defines column types that are the same for all databases, and the Avro schemas of published messages. This package
imports nothing else of the project.
"""
