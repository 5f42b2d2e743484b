"""What a changelog's messages are. Pure: nothing here reads a socket, a file, a clock or the environment."""

from envelope.model import Envelope, Provenance
from envelope.position import Position

__all__ = ["Envelope", "Position", "Provenance"]
