"""Quotes names and strings in SQL that we write as text: scripts, hints and replication commands."""


def identifier(*names: str) -> str:
    """Returns a name in quotes; several parts, such as schema and table, are joined by dots."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def literal(text: str) -> str:
    """Returns a string in quotes, for a server whose standard_conforming_strings is on, which is the default."""
    return "'" + text.replace("'", "''") + "'"
