"""Quotes names and strings in SQL that we write as text: scripts, hints and replication commands."""

from changelog.connectors.terminal import safe


def identifier(*names: str) -> str:
    """Returns a name in quotes; several parts, such as schema and table, are joined by dots."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def literal(text: str) -> str:
    """Returns a string in quotes, for a server with the default standard_conforming_strings = on."""
    return "'" + text.replace("'", "''") + "'"


def printable(*names: str) -> str:
    """Returns a name in quotes, as `identifier` does, for a script that people see in a terminal.

    Characters that could control a terminal are escaped (`U&"…"`).
    """
    return ".".join(map(_printable, names))


def _printable(name: str) -> str:
    quoted = identifier(name)
    if safe(name) == name:
        return quoted
    escaped = "".join(f"\\{ord(char):04X}" if safe(char) != char or char == "\\" else char for char in quoted)
    return f"U&{escaped}"
