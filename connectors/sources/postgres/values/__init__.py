"""Describes PostgreSQL's types, and converts the texts of their values to JSON."""
