"""Reads JSON in the binary log: documents, and lists of changes to a document."""
