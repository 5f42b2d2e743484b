"""Defines the settings that `[console]` and `[serve]` share: both describe an application that is served over HTTP."""

import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, StringConstraints

from changelog.connectors.config.fields import Section, Text

TOKEN_CHARS_MIN = 16
"""How many characters a token must have at least."""

Token = Annotated[str, StringConstraints(min_length=TOKEN_CHARS_MIN)]


class WebConfig(Section):
    """Where an application listens, and who may read what it answers.

    The answers contain the values that rows have in the changelog. So an address that other machines can reach needs a
    `token`, or the certificates of clients (`tls_client_ca`). This is checked not here, but by the command that serves
    the application: its options may change the address and the token. `names` are the host names in the application's
    addresses, if they differ from `host`.
    """

    host: Text = "127.0.0.1"
    port: int = Field(ge=0, le=65535)
    names: tuple[Text, ...] = ()
    token: Token | None = Field(default=None, repr=False)
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def beside(self, folder: Path) -> Self:
        """Returns the same settings, with relative paths resolved against `folder`, the folder of the configuration
        file.
        """
        paths = {name: value for name in type(self).model_fields if isinstance(value := getattr(self, name), Path)}
        return self.model_copy(update={name: folder / path for name, path in paths.items()})


def web_problems(settings: WebConfig) -> Iterator[tuple[str, str]]:
    """Yields each problem of the section: the key, and a text that says what is wrong and how to correct it."""
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        missing, other = ("tls_key", "tls_certificate") if settings.tls_key is None else ("tls_certificate", "tls_key")
        yield missing, f"is missing; add it, or leave {other} out"
    if settings.tls_client_ca is not None and settings.tls_certificate is None:
        yield "tls_client_ca", "needs TLS; add tls_certificate and tls_key"
