"""Defines the messages of a changelog, and encodes and decodes them. This package is pure: it reads no socket, file,
clock or environment.
"""

from changelog.envelope.model import Envelope, Provenance
from changelog.envelope.position import Position

__all__ = ["Envelope", "Position", "Provenance"]
