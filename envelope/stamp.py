"""Provenance stamps: what an application says about its own transaction."""

import msgspec

from envelope.model import Stamp

PREFIX = "provenance"
"""The prefix of the logical messages that carry stamps."""

NBYTES_MAX = 4096


class _Wire(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    service_name: str
    api_version: str = ""
    identifier: str = ""


_decoder = msgspec.json.Decoder(_Wire)


def parse(payload: bytes) -> Stamp | None:
    """The stamp in a logical message's content; None when it is not one, which counts as missing.

    A stamp is a JSON object of at most `NBYTES_MAX` bytes whose fields are texts: `serviceName`,
    not empty, and perhaps `apiVersion` and `identifier`. What an application leaves out stays
    empty: the default is for changes that nobody stamped, and must not complete a stamp.
    """
    if len(payload) > NBYTES_MAX:
        return None
    try:
        wire = _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if not wire.service_name:
        return None
    return Stamp(api_version=wire.api_version, service_name=wire.service_name, identifier=wire.identifier)
