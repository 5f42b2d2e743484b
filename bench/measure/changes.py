"""Makes a changelog for benchmarks. It has updates of bookings; each update gives two of 15 columns new values."""

import random
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

from changelog.envelope.columnar.batch import SCHEMA
from changelog.schemas.avro import Column
from changelog.schemas.types import ColumnType, Decimal, Primitive

CHANGES_OF_A_KEY = 5
"""How many updates a key has on average. They are spread over the whole changelog."""

BLOCK = 50_000
"""How many rows a batch has. The last batch may have fewer."""

_TYPES: Mapping[str, ColumnType] = {
    "id": Primitive.LONG,
    "status": Primitive.STRING,
    "amount": Decimal(precision=10, scale=2),
    "currency": Primitive.STRING,
    "guest_id": Primitive.LONG,
    "room": Primitive.STRING,
    "nights": Primitive.INT,
    "adults": Primitive.INT,
    "arrival": Primitive.DATE,
    "created_at": Primitive.TIMESTAMP_TZ,
    "channel": Primitive.STRING,
    "paid": Primitive.BOOLEAN,
    "rating": Primitive.DOUBLE,
    "note": Primitive.STRING,
    "email": Primitive.STRING,
}

COLUMNS = [Column(name=name, type=type_, nullable=True) for name, type_ in _TYPES.items()]
"""The columns of a booking."""

_COMMITTED_AT_US = 1_795_000_000_000_000
_STATES = ("NEW", "CONFIRMED", "PAID", "CANCELLED")
_PROVENANCE = (
    '{"apiVersion":"v2","serviceName":"order-api","identifier":"req-%d","source":{"connector":"postgres",'
    '"name":"booking","database":"app","table":"public.orders","op":"update","position":"%s","transaction":"%d",'
    '"committedAt":"2026-11-21T03:10:02.886044Z"}}'
)


def updates(rows: int, *, first: int = 0, at_us: int = _COMMITTED_AT_US, seed: int = 0) -> Iterator[pa.RecordBatch]:
    """Yields batches of updates of bookings, sorted by position. A booking is a row of the entity `order`.

    The schema of the batches is `changelog.envelope.columnar.batch.SCHEMA`. The same arguments always yield the same
    batches. Each row is a transaction of its own. Transactions are numbered from `first` on. The first one is committed
    at `at_us` (microseconds since 1970), and each later one a microsecond after the one before it.
    """
    rng = random.Random(seed)
    keys = max(1, rows // CHANGES_OF_A_KEY)
    unchanging = [_unchanging_columns(rng) for _ in range(keys)]
    states = [_state(rng, key, unchanging[key]) for key in range(keys)]
    for begin in range(first, first + rows, BLOCK):
        numbers = range(begin, min(begin + BLOCK, first + rows))
        yield _block(rng, numbers, at_us - first, states, lambda key: _state(rng, key, unchanging[key]))


def _block(
    rng: random.Random, numbers: range, at_us: int, states: list[str], new_state: Callable[[int], str]
) -> pa.RecordBatch:
    keys = [rng.randrange(len(states)) for _ in numbers]
    originals, currents = [], []
    for key in keys:
        originals.append(states[key])
        states[key] = new_state(key)
        currents.append(states[key])
    positions = [f"00000001/{n:016X}/00000000" for n in numbers]
    size = len(numbers)
    columns = {
        "entity": ["order"] * size,
        "partition": [key % 4 for key in keys],
        "key": [str(key) for key in keys],
        "op": ["update"] * size,
        "position": positions,
        "transaction": [str(n) for n in numbers],
        "committed_at": [at_us + n for n in numbers],
        "api_version": ["v2"] * size,
        "service_name": ["order-api"] * size,
        "identifier": [f"req-{n}" for n in numbers],
        "provenance": [_PROVENANCE % (n, position, n) for n, position in zip(numbers, positions, strict=True)],
        "current": currents,
        "original": originals,
        "moved": [None] * size,
        "context": [None] * size,
    }
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def _state(rng: random.Random, key: int, unchanging: str) -> str:
    return f'{{"id":{key},"status":"{rng.choice(_STATES)}","amount":"{rng.randrange(100_000) / 100:.2f}",{unchanging}'


def _unchanging_columns(rng: random.Random) -> str:
    note = rng.choice(("null", '"late arrival, please keep the key"', '"two beds"'))
    return (
        f'"currency":"EUR","guest_id":{rng.randrange(1_000_000)},"room":"{rng.randrange(1, 9)}{rng.randrange(100):02}",'
        f'"nights":{rng.randrange(1, 15)},"adults":{rng.randrange(1, 4)},'
        f'"arrival":"2026-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}",'
        f'"created_at":"2026-11-21T03:10:02.{rng.randrange(1_000_000):06}Z",'
        f'"channel":"{rng.choice(("web", "app", "phone"))}","paid":{rng.choice(("true", "false"))},'
        f'"rating":{round(rng.random() * 5, 2)},"note":{note},"email":"guest{rng.randrange(1_000_000)}@example.org"}}'
    )
