"""Makes a changelog for tests of the console. It has the changes of a few rows.

Some rows have hostile values, such as scripts, or texts that are too long for a page.
"""

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec

from changelog.connectors import config
from changelog.connectors.config import Config
from changelog.connectors.sinks.files.sink import FileSink
from changelog.envelope.columnar import batch
from changelog.envelope.entity import Entity
from changelog.envelope.key import key_text
from changelog.envelope.model import MISSING, Op, Place, Record, Stamp, position_of
from changelog.envelope.versions import TableColumns, Versions
from changelog.schemas.types import Primitive, Struct
from tests.unit.records import checkpoint, record

MARKUP = "<script>alert('x')</script>"
REVERSED = "\u202ereversed\u202c\u0007"
HARD_KEY = key_text(["a/b ?#%", "..", ""])
LONG = "x" * 1_000_000
WIDE = {f"column_{number}": number for number in range(5000)}

CONFIG = """
name = "booking"
source = {{ kind = "postgres", dsn = "{dsn}" }}
sink = {{ path = "log" }}
tables = {{ include = ["*"] }}
console = {{ port = 0, drift_reports = "drift"{console} }}
service = {{ listen = "127.0.0.1:9" }}
"""

NOWHERE = "host=127.0.0.1 port=9 dbname=app"
"""A connection string that leads to no database: no server listens at this port."""

KEYS = {"order": ["id"], "guest": ["id"], "seat": ["hall", "row", "seat"]}


def _json(**members: object) -> str:
    return msgspec.json.encode(members).decode()


def _by(change: Record, service: str, version: str, identifier: str, context: str | None = None) -> Record:
    stamp = Stamp(api_version=version, service_name=service, identifier=identifier, context=context)
    provenance = replace(change.envelope.provenance, stamp=stamp)
    return replace(change, envelope=replace(change.envelope, provenance=provenance))


NEW = _json(id=42, status="NEW", amount="411.00", address={"street": "Rue 1", "city": "Basel"})
PAID = _json(id=42, status="PAID", amount="411.00", address={"street": "Rue 1", "city": "Basel"})
MOVED_HOUSE = _json(id=42, status="PAID", amount="411.00", address={"street": "Quai 9", "city": "Basel"})
DISCOUNT = _json(id=42, status="PAID", amount="390.00", address={"street": "Quai 9", "city": "Basel"})


def _left() -> str:
    return _json(id=44, status="NEW")


def _arrived(status: str = "NEW") -> str:
    return _json(id=45, status=status)


def story() -> list[Record]:
    """Returns the changes in the order of their commits. The commits are numbered from 1."""
    first = record(Op.CREATE, NEW, commit=1)
    return [
        _by(first, "web-booking", "v3", "req-71c2", '{"channel":"app"}'),
        _by(record(Op.UPDATE, PAID, NEW, commit=2), "payment-api", "v2", "pay-5510"),
        _by(record(Op.UPDATE, MOVED_HOUSE, PAID, commit=3), "crm", "v1", "req-03fe"),
        _by(record(Op.UPDATE, DISCOUNT, MOVED_HOUSE, commit=4), "unknown", "unknown", ""),
        record(Op.CREATE, _json(id=7, name="Zoë"), commit=5, key="7", entity="guest", service="web-booking"),
        record(Op.CREATE, _json(id=43, status="NEW"), commit=6, key="43", service="mobile-app"),
        record(Op.DELETE, None, _json(id=43, status="NEW"), commit=7, key="43", service="night-audit"),
        record(Op.CREATE, _json(id=44, status="NEW"), commit=8, key="44", service="crm"),
        record(Op.DELETE, None, _left(), commit=9, ordinal=0, key="44", moved_to=Place(key="45", partition=0)),
        record(Op.CREATE, _arrived(), commit=9, ordinal=1, key="45", moved_from=Place(key="44", partition=0)),
        _by(record(Op.CREATE, _json(note=MARKUP), commit=10, key=HARD_KEY, entity="seat"), MARKUP, MARKUP, MARKUP),
        record(Op.UPDATE, _json(note=REVERSED), _json(note=MARKUP), commit=11, key=HARD_KEY, entity="seat"),
        record(Op.CREATE, _json(id=8, note=LONG), commit=12, key="8", entity="guest"),
        record(Op.UPDATE, _json(id=8, note=f"{LONG}y"), _json(id=8, note=LONG), commit=13, key="8", entity="guest"),
        record(Op.CREATE, _json(**WIDE), commit=14, key="9", entity="guest"),
        record(Op.UPDATE, _json(id=46, status="B"), MISSING, commit=15, key="46", unavailable=("amount",)),
    ]


LAST = 15
"""The commit of the last change."""


def hotel_changes() -> list[Record]:
    """Returns changes without hostile values, for screenshots: the first ten of the story, and two more."""
    paid = record(Op.UPDATE, _arrived("PAID"), _arrived(), commit=10, key="45")
    renamed = record(
        Op.UPDATE, _json(id=7, name="Zoë Keller"), _json(id=7, name="Zoë"), commit=11, key="7", entity="guest"
    )
    return [*story()[:10], _by(paid, "payment-api", "v2", "pay-5511"), _by(renamed, "crm", "v1", "req-0412")]


def versions() -> list[Record]:
    """Returns two rows of `schemas`. They announce the columns of `order`: first `id` and `status`, and then `amount`,
    too.
    """
    entity = Entity(
        name="order",
        table=("public", "order"),
        key=("id",),
        partition_by=("id",),
        partitions=1,
        masks={},
        default_stamp=Stamp(api_version="", service_name="", identifier=""),
    )
    known = Versions([], accepted={}, filled=lambda *_: ())
    old = (("id", Primitive.LONG), ("status", Primitive.STRING))
    tables = [TableColumns(columns=Struct(fields=fields)) for fields in (old, (*old, ("amount", Primitive.STRING)))]
    provenances = [record(Op.CREATE, NEW, commit=commit).envelope.provenance for commit in (1, 2)]
    return [known.announce(entity, table, first).record for table, first in zip(tables, provenances, strict=True)]


def write(path: Path, records: Iterable[Record]) -> None:
    """Stores records in the file log at `path`, each in a commit of its own."""
    with closing(FileSink(path)) as sink:
        sink.recover()
        for item in sorted(records, key=lambda item: (position_of(item), item.entity != "schemas")):
            add(sink, [item])


def add(sink: FileSink, records: Sequence[Record]) -> None:
    """Stores records in one commit."""
    commit = position_of(records[-1]).commit
    settings = {entity: {"key": key} for entity, key in KEYS.items()}
    sink.add([batch.from_records(records)])
    sink.commit(replace(checkpoint(commit), settings=settings, position=position_of(records[-1])))


def settings(folder: Path, *, dsn: str = NOWHERE, console: str = "") -> Config:
    """Writes a configuration into the folder, and returns it. `console` is TOML with further keys for `[console]`."""
    file = folder / "changelog.toml"
    file.write_text(CONFIG.format(dsn=dsn, console=f", {console}" if console else ""), "utf-8")
    return config.load(file, {})
