"""Restores 64-bit transaction ids."""


class Xids:
    """Extends pgoutput's 32-bit transaction ids to 64 bits by taking the one nearest to the last id."""

    def __init__(self, reference: int) -> None:
        self._reference = reference

    def full(self, xid: int) -> int:
        """The 64-bit id whose low half is `xid`."""
        ahead = (xid - self._reference) & 0xFFFFFFFF
        self._reference += ahead if ahead < 1 << 31 else ahead - (1 << 32)
        return self._reference
