"""Decides by which names a browser may call an application.

A page of another site can make its own name point to this machine (DNS rebinding), and could then read our answers as
if they were a part of that site. So we answer only to names that are certainly our own.
"""

import ipaddress
import re
from collections.abc import Iterable

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

_IN_BRACKETS = re.compile(r"\[([^\[\]]*)\](?::[0-9]*)?")


class Hosts:
    """Knows our own names: the configured `names`, and with `is_loopback` also `localhost` and its addresses."""

    def __init__(self, names: Iterable[str], *, is_loopback: bool) -> None:
        own = LOOPBACK_NAMES if is_loopback else frozenset[str]()
        self._names = own | {_bare(name) for name in names}

    def knows(self, host: str, local_address: str | None) -> bool:
        """Returns whether the header `Host` has one of our names.

        `local_address` is the address at which the request arrived. It counts as one of our names, too, because DNS
        rebinding needs a name, not an address.
        """
        name = _bare(host)
        return bool(name) and (name in self._names or (_is_address(name) and name == local_address))


def _bare(host: str) -> str:
    """Returns a host without its port and brackets, in lower case."""
    if match := _IN_BRACKETS.fullmatch(host):
        return match[1].lower()
    name, _, port = host.rpartition(":")
    return (name if port.isdecimal() and name and ":" not in name else host).lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
