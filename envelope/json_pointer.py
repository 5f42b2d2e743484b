"""Escapes and unescapes the steps of JSON pointers. RFC 6901 calls these steps reference tokens."""


def escaped(name: str) -> str:
    """Returns the step of a pointer that leads to the member `name`."""
    return name.replace("~", "~0").replace("/", "~1")


def unescaped(step: str) -> str:
    """Returns the name of the member to which a step leads."""
    return step.replace("~1", "/").replace("~0", "~")
