"""Names and texts as SQL has them, where a statement is text: in scripts, in hints, and in commands of replication."""


def identifier(*names: str) -> str:
    """A name in quotes, its parts joined by dots."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def literal(text: str) -> str:
    """A text in quotes, for a server with standard_conforming_strings, as each is by default."""
    return "'" + text.replace("'", "''") + "'"
