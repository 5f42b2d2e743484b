"""Loads an old module: the reader of checkpoints in the last version of the service that knew only format 1."""

from pathlib import Path
from types import ModuleType

SOURCE = Path(__file__).parent / "golden" / "checkpoint_format_1.py.txt"


def reader() -> ModuleType:
    """Returns the module `changelog.envelope.checkpoint` of that version."""
    module = ModuleType("changelog.envelope.checkpoint_format_1")
    exec(compile(SOURCE.read_text(), SOURCE, "exec"), module.__dict__)
    return module
