"""Describes PostgreSQL's types, and converts their values from text to JSON."""
