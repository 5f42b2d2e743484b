"""The error of a value whose bytes its type cannot have, and the check of a value's size."""

from changelog.envelope.errors import ChangelogError, Kind


def malformed(type_name: str, problem: str) -> ChangelogError:
    """Returns the error (MALFORMED) of a value of this type; `problem` completes the sentence after `a value`."""
    return ChangelogError(Kind.MALFORMED, f"a value of type {type_name} {problem}")


def check_size(type_name: str, raw: bytes | memoryview, size: int) -> None:
    """Raises ChangelogError (MALFORMED) unless the value has exactly `size` bytes."""
    if len(raw) != size:
        raise malformed(type_name, f"has {len(raw)} bytes instead of {size}")
