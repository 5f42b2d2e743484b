"""Decides which names of the console a browser may use.

A page of another site can make its own name point to this machine (DNS rebinding), and could then read the console as
if the console were a part of that site. So the console answers only to names that are certainly its own.
"""

import ipaddress
import re
from collections.abc import Iterable

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

_IN_BRACKETS = re.compile(r"\[([^\[\]]*)\](?::[0-9]*)?")


class Hosts:
    """Knows the console's names: the configured `names`, and with `is_loopback` also `localhost` and its addresses."""

    def __init__(self, names: Iterable[str], *, is_loopback: bool) -> None:
        own = LOOPBACK_NAMES if is_loopback else frozenset[str]()
        self._names = own | {_bare(name) for name in names}

    def knows(self, host: str, local_address: str | None) -> bool:
        """Returns whether the header `Host` names the console.

        `local_address` is the address at which the request arrived. It counts as a name of the console, too, because no
        other site can choose it.
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
