"""Encodes, signs and checks signals. A signal is an operator's request to a running service. It reaches the service
through the database's log.
"""

import hmac
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

import msgspec

from changelog.envelope.errors import ChangelogError, Kind

PREFIX = "changelog"
"""The prefix of logical messages that carry signals. A service also writes messages with this prefix, to mark the place
in the log at which it publishes rows that it read from a table."""

FENCE_PREFIX = "changelog-fence"
"""The prefix of an empty message. A drift comparison writes it when it has taken its fence, the snapshot under which it
reads tables. A service that reads this message stores its checkpoint at once."""

KEYS_MAX = 10_000
"""The most keys in one signal; for more keys, the sender writes several signals."""

KEYS_BYTES_MAX = 256 << 10
"""The most UTF-8 bytes that the keys in one signal may have. The limit is small, because checkpoints hold the pending
signals.
"""

NBYTES_MAX = 2 << 20
"""The most bytes of a whole signal. This is far more than KEYS_BYTES_MAX, because JSON can need six bytes for one byte
of a key."""

ID_MAX = 100
"""The most characters in a signal's id."""

Do = Literal["republish", "rebuild", "pause", "resume", "cancel"]

_NONCE_CHARS, _HEX = 32, frozenset(b"0123456789abcdef")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One request. The sender chooses `id`; two signals with the same id count as one.

    `entity` names one entity. In pause, resume and cancel, it may be None, which means all entities. `keys` are the
    texts of keys (`changelog.envelope.key.key_text`), or None for the whole table; only republish accepts keys.
    `service` names the service that has to act on the signal; None means every service that reads this database.
    """

    do: Do
    id: str
    entity: str | None = None
    keys: tuple[str, ...] | None = None
    service: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Signing:
    """The secret that signs a signal, and the transaction for which the signature is valid.

    `cluster` is the database's system identifier. `transaction` is the 64-bit id of the transaction that writes the
    signal. No other transaction of this database cluster ever has the same id. So if somebody writes a copy of the
    signal later, the copy is refused.
    """

    secret: bytes
    cluster: str
    transaction: int


class _Wire(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    do: Do
    id: str
    entity: str | None = None
    keys: list[str] | None = None
    service: str | None = None
    cluster: str | None = None
    transaction: str | None = None
    mac: str | None = None


_SIGNED = ("do", "id", "entity", "keys", "service", "cluster", "transaction")

_decoder = msgspec.json.Decoder(_Wire)


def is_nonce(content: bytes) -> bool:
    """Returns whether the content of a message with the prefix `PREFIX` is a nonce: 32 hex digits. Such a message is
    not a signal; it marks the place in the log at which a service publishes rows that it read from a table.
    """
    return len(content) == _NONCE_CHARS and _HEX.issuperset(content)


def encode(signal: Signal, signing: Signing | None) -> bytes:
    """Returns the content of the message that carries a signal: a JSON object.

    With `signing`, the object also has the members `cluster`, `transaction` and `mac`. To compute `mac`, all other
    members are written as compact JSON in UTF-8, sorted by name; `mac` is the HMAC-SHA256 (RFC 2104) of this text, in
    lowercase hex. Raises ChangelogError (USAGE) for a signal that `parse` would refuse.
    """
    wire = _Wire(
        do=signal.do,
        id=signal.id,
        entity=signal.entity,
        keys=None if signal.keys is None else list(signal.keys),
        service=signal.service,
    )
    problem = _problem(wire)
    if problem is not None:
        raise ChangelogError(Kind.USAGE, f"not a valid signal: {problem}")
    if signing is not None:
        wire.cluster, wire.transaction = signing.cluster, str(signing.transaction)
        wire.mac = _mac(wire, signing.secret)
    return msgspec.json.encode(wire)


def parse(content: bytes, signing: Signing | None) -> Signal:
    """Returns the signal that is the content of a message. With `signing`, the signal must be signed with this secret,
    for this cluster and this transaction.

    Raises ChangelogError: MALFORMED if the content is not a valid signal, ACCESS if its signature is missing or wrong.
    """
    if len(content) > NBYTES_MAX:
        raise ChangelogError(Kind.MALFORMED, f"a signal has more than {NBYTES_MAX} bytes")
    try:
        wire = _decoder.decode(content)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        message = "a message is not a valid signal: it is not a JSON object with the members of a signal"
        raise ChangelogError(Kind.MALFORMED, message) from None
    problem = _problem(wire)
    if problem is not None:
        raise ChangelogError(Kind.MALFORMED, f"a message is not a valid signal: {problem}")
    if signing is not None:
        _refuse_unsigned(wire, signing)
    keys = None if wire.keys is None else tuple(wire.keys)
    return Signal(do=wire.do, id=wire.id, entity=wire.entity, keys=keys, service=wire.service)


def _refuse_unsigned(wire: _Wire, signing: Signing) -> None:
    if wire.mac is None:
        raise ChangelogError(Kind.ACCESS, "a signal is not signed", hint="sign it with the secret in [signals] secret")
    if not hmac.compare_digest(wire.mac.encode(), _mac(wire, signing.secret).encode()):
        raise ChangelogError(Kind.ACCESS, "a signal is signed with a different secret than the one in [signals] secret")
    if wire.cluster is None or wire.transaction is None:
        message = "a signal is not signed for a transaction, so anybody may have copied it"
        raise ChangelogError(Kind.ACCESS, message, hint="send it with this version of the program")
    if (wire.cluster, wire.transaction) != (signing.cluster, str(signing.transaction)):
        raise ChangelogError(Kind.ACCESS, "a signal is signed for another transaction: somebody copied it")


def divide(keys: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Divides keys into tuples, each of which fits into one signal. A repeated key is included only once.

    Raises ChangelogError (USAGE) for a key that is too large for a signal.
    """
    run: list[str] = []
    room = KEYS_BYTES_MAX
    for key in dict.fromkeys(keys):
        nbytes = len(key.encode(errors="replace"))
        if nbytes > KEYS_BYTES_MAX:
            raise ChangelogError(
                Kind.USAGE,
                f"a key has {nbytes} bytes, and a signal holds at most {KEYS_BYTES_MAX}",
                hint="republish the whole table with --all",
            )
        if len(run) == KEYS_MAX or nbytes > room:
            yield tuple(run)
            run, room = [], KEYS_BYTES_MAX
        run.append(key)
        room -= nbytes
    if run:
        yield tuple(run)


def _problem(wire: _Wire) -> str | None:
    """Returns why the signal is not valid; None if it is valid."""
    try:
        nbytes = sum(len(key.encode()) for key in wire.keys or ())
        for text in _texts(wire):
            text.encode()
    except UnicodeEncodeError:  # JSON can escape an unpaired surrogate, which UTF-8 cannot hold.
        return "it contains an unpaired surrogate"
    repairs = wire.do in ("republish", "rebuild")
    if not 0 < len(wire.id) <= ID_MAX:
        return f"its id should have 1 to {ID_MAX} characters"
    if repairs and not wire.entity:
        return f"{wire.do} needs an entity"
    if wire.keys is not None and wire.do != "republish":
        return f"{wire.do} accepts no keys"
    if wire.keys is not None and not 0 < len(wire.keys) <= KEYS_MAX:
        return f"it has {len(wire.keys)} keys, and should have 1 to {KEYS_MAX}"
    if nbytes > KEYS_BYTES_MAX:
        return f"its keys have {nbytes} bytes, and should have at most {KEYS_BYTES_MAX}"
    return None


def _texts(wire: _Wire) -> Iterator[str]:
    for name in (*_SIGNED, "mac"):
        value = getattr(wire, name)
        if isinstance(value, str):
            yield value


def _mac(wire: _Wire, secret: bytes) -> str:
    members: dict[str, Any] = {name: value for name in _SIGNED if (value := getattr(wire, name)) is not None}
    return hmac.new(secret, msgspec.json.encode(members, order="sorted"), sha256).hexdigest()
