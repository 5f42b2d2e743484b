"""Decodes what a table map says about a table: names, types, and the optional metadata of columns."""
