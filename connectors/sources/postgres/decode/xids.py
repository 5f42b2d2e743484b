"""Restores 64-bit transaction ids. pgoutput sends only their low 32 bits."""


class Xids:
    """Extends pgoutput's 32-bit transaction ids to 64 bits.

    Of all 64-bit ids with the given low bits, it takes the one that is nearest to the previous id. For the first call,
    the previous id is `reference`.
    """

    def __init__(self, reference: int) -> None:
        self._reference = reference

    def full(self, xid: int) -> int:
        """Returns the 64-bit id whose low half is `xid`."""
        ahead = (xid - self._reference) & 0xFFFFFFFF
        self._reference += ahead if ahead < 1 << 31 else ahead - (1 << 32)
        return self._reference
