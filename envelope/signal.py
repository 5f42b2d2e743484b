"""Signals: what an operator asks of a running service, written into the database's own log."""

import hmac
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

import msgspec

from envelope.errors import ChangelogError, Kind

PREFIX = "changelog"
"""The prefix of the logical messages that carry signals, and of those that a service writes for itself."""

FENCE_PREFIX = "changelog-fence"
"""Of the empty message behind a drift fence: a service that comes to it stores at once how far it is."""

KEYS_MAX = 10_000
"""Keys of one signal; more keys: the sender sends several."""

KEYS_BYTES_MAX = 256 << 10
"""UTF-8 of one signal's keys: what is pending stands in every checkpoint."""

NBYTES_MAX = 2 << 20
"""A signal's content: every byte of its keys may be escaped as six."""

ID_MAX = 100
"""Characters of a signal's id."""

Do = Literal["republish", "rebuild", "pause", "resume", "cancel"]

_NONCE_CHARS, _HEX = 32, frozenset(b"0123456789abcdef")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """What is asked; `id` is chosen by the sender, and a signal that comes twice is one.

    `entity` is None for all, which only pause, resume and cancel take. `keys` are canonical key texts, None for the
    whole table; only republish takes any. `service` is the name of the service that is to do it, None for every one
    that reads this database.
    """

    do: Do
    id: str
    entity: str | None = None
    keys: tuple[str, ...] | None = None
    service: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Signing:
    """What a signal is signed with: the secret, and for which transaction.

    `cluster` is the database's system identifier, `transaction` the id, in 64 bits, of the transaction that writes
    the signal. No other transaction ever has it, so that a signal that somebody copied is refused however old it is.
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
    """Whether a message is the mark of a window, ours or another service's, and no signal."""
    return len(content) == _NONCE_CHARS and _HEX.issuperset(content)


def encode(signal: Signal, signing: Signing | None) -> bytes:
    """The message's content: a JSON object; a signed one has a `mac`, and says which transaction it is for.

    `mac` is the HMAC-SHA256 (RFC 2104), in lowercase hex, of the object without it: its members sorted by name,
    compact, in UTF-8. Raises ChangelogError (USAGE) for a signal that `parse` would refuse.
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
        raise ChangelogError(Kind.USAGE, f"this is no signal: {problem}")
    if signing is not None:
        wire.cluster, wire.transaction = signing.cluster, str(signing.transaction)
        wire.mac = _mac(wire, signing.secret)
    return msgspec.json.encode(wire)


def parse(content: bytes, signing: Signing | None) -> Signal:
    """The signal in a message's content; with `signing`, only one that is signed so, for the message's transaction.

    Raises ChangelogError: MALFORMED for what is no signal, ACCESS for one that is not signed or wrongly.
    """
    if len(content) > NBYTES_MAX:
        raise ChangelogError(Kind.MALFORMED, f"a signal holds more than the {NBYTES_MAX} bytes that are read")
    try:
        wire = _decoder.decode(content)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise ChangelogError(Kind.MALFORMED, "a message is no signal: not the JSON object of one") from None
    problem = _problem(wire)
    if problem is not None:
        raise ChangelogError(Kind.MALFORMED, f"a message is no signal: {problem}")
    if signing is not None:
        _refuse_unsigned(wire, signing)
    keys = None if wire.keys is None else tuple(wire.keys)
    return Signal(do=wire.do, id=wire.id, entity=wire.entity, keys=keys, service=wire.service)


def _refuse_unsigned(wire: _Wire, signing: Signing) -> None:
    if wire.mac is None:
        raise ChangelogError(Kind.ACCESS, "a signal is not signed", hint="sign it with [signals] secret")
    if not hmac.compare_digest(wire.mac.encode(), _mac(wire, signing.secret).encode()):
        raise ChangelogError(Kind.ACCESS, "a signal is signed with another secret than [signals] secret")
    if wire.cluster is None or wire.transaction is None:
        what = "a signal is signed for no transaction, so that anybody may have copied it"
        raise ChangelogError(Kind.ACCESS, what, hint="send it with this version of the program")
    if (wire.cluster, wire.transaction) != (signing.cluster, str(signing.transaction)):
        raise ChangelogError(Kind.ACCESS, "a signal is signed for another transaction: somebody copied it")


def divide(keys: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """The keys, without those that come again, in runs of which each fits one signal.

    Raises ChangelogError (USAGE) for a key that fits none.
    """
    run: list[str] = []
    room = KEYS_BYTES_MAX
    for key in dict.fromkeys(keys):
        nbytes = len(key.encode(errors="replace"))
        if nbytes > KEYS_BYTES_MAX:
            raise ChangelogError(
                Kind.USAGE,
                f"a key holds {nbytes} bytes, and a signal {KEYS_BYTES_MAX} at most",
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
    """Why this cannot be asked; None when it can."""
    try:
        nbytes = sum(len(key.encode()) for key in wire.keys or ())
        for text in _texts(wire):
            text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can escape
        return "it holds half a character"
    repairs = wire.do in ("republish", "rebuild")
    if not 0 < len(wire.id) <= ID_MAX:
        return f"its id should have 1 to {ID_MAX} characters"
    if repairs and not wire.entity:
        return f"{wire.do} is of one entity"
    if wire.keys is not None and wire.do != "republish":
        return f"{wire.do} takes no keys"
    if wire.keys is not None and not 0 < len(wire.keys) <= KEYS_MAX:
        return f"it has {len(wire.keys)} keys, and should have 1 to {KEYS_MAX}"
    if nbytes > KEYS_BYTES_MAX:
        return f"its keys hold {nbytes} bytes, and should hold {KEYS_BYTES_MAX} at most"
    return None


def _texts(wire: _Wire) -> Iterator[str]:
    for name in (*_SIGNED, "mac"):
        value = getattr(wire, name)
        if isinstance(value, str):
            yield value


def _mac(wire: _Wire, secret: bytes) -> str:
    members: dict[str, Any] = {name: value for name in _SIGNED if (value := getattr(wire, name)) is not None}
    return hmac.new(secret, msgspec.json.encode(members, order="sorted"), sha256).hexdigest()
