"""Masks values that must not be published: replaces them by null or by a hash."""

import hmac
from collections.abc import Mapping
from hashlib import sha256
from typing import Literal

import msgspec

from changelog.envelope import canonical

MaskKind = Literal["drop", "null", "sha256"]


def apply(kind: MaskKind, value: bytes, hmac_key: bytes) -> bytes:
    """Returns the JSON that is published instead of the JSON value `value`.

    `null` gives null. `sha256` gives a string: the HMAC-SHA256 (RFC 2104) of the value's canonical text, in lowercase
    hex. So equal values have equal hashes, but without the HMAC key, nobody can test which value has a given hash.
    Raises ValueError for `drop`, because a column with this mask is not published at all.
    """
    match kind:
        case "null":
            return b"null"
        case "sha256":
            return b'"%b"' % _hmac(hmac_key, canonical.text(value).encode()).encode()
    raise ValueError("a dropped column has no value")


def mask_id(masks: Mapping[str, MaskKind], hmac_key: bytes = b"") -> str | None:
    """Returns the value of `source.mask` in the messages of a table whose columns have these masks. It has 16 hex
    digits, which change whenever a mask or the HMAC key changes.

    Returns None if there are no masks.
    """
    if not masks:
        return None
    return _hmac(hmac_key, msgspec.json.encode(masks, order="sorted"))[:16]


def _hmac(key: bytes, text: bytes) -> str:
    return hmac.new(key, text, sha256).hexdigest()
