"""Makes the error for a value whose bytes are impossible for its type, and checks the size of values."""

from changelog.envelope.errors import ChangelogError, Kind


def malformed(type_name: str, problem: str) -> ChangelogError:
    """Returns the error (MALFORMED) for a value of this type. `problem` completes a sentence that begins with "a
    value".
    """
    return ChangelogError(Kind.MALFORMED, f"a value of type {type_name} {problem}")


def check_size(type_name: str, raw: bytes | memoryview, size: int) -> None:
    """Raises ChangelogError (MALFORMED) unless the value has exactly `size` bytes."""
    if len(raw) != size:
        raise malformed(type_name, f"has {len(raw)} bytes instead of {size}")
