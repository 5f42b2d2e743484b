"""Defines the section `[console]`."""

import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints

from changelog.connectors.config.fields import Section, Text

TOKEN_CHARS_MIN = 16
"""The fewest characters of a token."""


class ConsoleConfig(Section):
    """`[console]`: where `changelog console` listens, and who may open it.

    Whoever opens the console sees the values of all rows, as the changelog has them. So an address that other machines
    can reach needs a `token`, or the certificates of clients (`tls_client_ca`). This is checked by `changelog console`,
    because its options may replace the address and the token. `names` are the host names in the console's addresses, if
    they differ from `host`.
    """

    host: Text = "127.0.0.1"
    port: int = Field(default=9465, ge=0, le=65535)
    names: tuple[Text, ...] = ()
    token: Annotated[str, StringConstraints(min_length=TOKEN_CHARS_MIN)] | None = Field(default=None, repr=False)
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    drift_reports: Path | None = None

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def beside(self, folder: Path) -> "ConsoleConfig":
        """Returns the same settings with relative paths resolved: they are relative to the folder of the file."""
        paths = ("tls_certificate", "tls_key", "tls_client_ca", "drift_reports")
        return self.model_copy(update={name: folder / path for name in paths if (path := getattr(self, name))})


def console_problems(console: ConsoleConfig) -> Iterator[tuple[str, str]]:
    """Yields each problem of the section: the key, and a text that says what is wrong and how to correct it."""
    if (console.tls_certificate is None) != (console.tls_key is None):
        missing, other = ("tls_key", "tls_certificate") if console.tls_key is None else ("tls_certificate", "tls_key")
        yield missing, f"is missing; add it, or leave {other} out"
    if console.tls_client_ca is not None and console.tls_certificate is None:
        yield "tls_client_ca", "needs TLS; add tls_certificate and tls_key"
