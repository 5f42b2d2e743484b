"""Tests the encoding of rows in groups. The result must be the same as for rows that are encoded one by one."""

import zlib
from dataclasses import replace
from random import Random
from unittest.mock import patch

import numpy as np
import pytest

from changelog.connectors.capture.assembly import row_groups
from changelog.connectors.capture.assembly.assembled import EncodedRows
from changelog.connectors.capture.assembly.row_groups import RowGroup, encode_groups
from changelog.connectors.capture.rows.json_columns import CompiledBinding
from changelog.connectors.capture.rows.row_records import Origin, Transaction
from changelog.connectors.capture.rows.spans import Span
from changelog.connectors.capture.rows.text_columns import TextColumns
from changelog.envelope.columnar.splice import INLINE
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op, Stamp
from tests.unit.memory.tables import bind

NAMES = ("order", "guest", "event")
COLUMNS = ("id", "status", "note")
ORIGIN = Origin(connector="memory", name="shop", database="shop")
STAMP = Stamp(api_version="v1", service_name="till", identifier="7")


def entity(name: str) -> Entity:
    return Entity(
        name=name,
        table=("shop", name),
        key=("id",),
        partition_by=("id",),
        partitions=3,
        masks={},
        default_stamp=Stamp(api_version="", service_name="nobody", identifier=""),
    )


class Texts:
    """A growing buffer of texts."""

    def __init__(self, random: Random) -> None:
        self._random, self.data = random, bytearray()

    def columns(self, keys: list[int]) -> TextColumns:
        """Adds random rows with these keys to the buffer, and returns where their values are."""
        columns = TextColumns.empty(len(COLUMNS), len(keys))
        for number, key in enumerate(keys):
            for place, text in enumerate((str(key), self._text(), self._text())):
                columns.starts[place, number] = len(self.data)
                columns.lengths[place, number] = len((text or "").encode())
                columns.null[place, number] = text is None
                self.data += (text or "").encode()
        return columns

    def _text(self) -> str | None:
        return self._random.choice([None, "", "plain", 'a "quoted" one', "línea\n", "\x00", "x" * 300])


def groups(random: Random, entities: list[Entity], texts: Texts, rows: int) -> list[RowGroup]:
    """Returns random rows in groups. The rows of a group are of one table and have the same op."""
    kinds = [
        (random.choice(entities), random.choice([Op.CREATE, Op.UPDATE, Op.UPDATE, Op.DELETE, Op.TRUNCATE]))
        for _ in range(rows)
    ]
    result = []
    for of in entities:
        bound = CompiledBinding.of(bind(of, COLUMNS))
        for op in (Op.CREATE, Op.UPDATE, Op.DELETE, Op.TRUNCATE):
            places = [place for place, kind in enumerate(kinds) if kind == (of, op)]
            keys = [random.randrange(50) for _ in places]
            moved = [key if random.random() < 0.9 else key + 1 for key in keys]
            result.append(
                RowGroup(
                    bound=bound,
                    op=op,
                    places=np.array(places, np.int64),
                    before=texts.columns(keys) if op in (Op.UPDATE, Op.DELETE) else None,
                    after=texts.columns(moved) if op in (Op.CREATE, Op.UPDATE) else None,
                )
            )
    return result


def spans(random: Random, rows: int) -> list[Span]:
    """Returns transactions of random sizes, some of them with a stamp. The first rows of the first transaction may
    already be published.
    """
    result: list[Span] = []
    left = rows
    while left:
        count = min(left, random.choice([1, 3, 40]))
        commit = 100 + len(result)
        transaction = Transaction(xid=commit, name=f"uuid:{commit}", epoch=1, commit=commit, committed_at=commit)
        stamp = random.choice([None, STAMP])
        published = random.randrange(8) if not result else -1
        result.append(Span(transaction=transaction, stamp=stamp, ordinal=2, rows=count, published=published))
        left -= count
    return result


def encoded(few: int, block: list[RowGroup], data: bytearray, block_spans: list[Span]) -> EncodedRows:
    with patch.object(row_groups, "FEW_ROWS", few):
        return encode_groups(ORIGIN, block, data, block_spans)


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_encoded_as_single_rows_are(seed: int) -> None:
    random = Random(zlib.crc32(b"row groups") + seed)
    texts, rows = Texts(random), random.choice([1, 60, 400])
    entities = [replace(entity(name), on_truncate="publish", missing_stamp="warn") for name in NAMES]
    block = groups(random, entities, texts, rows)
    texts.data += bytes(INLINE)
    block_spans = spans(random, rows)
    together, one_by_one = (encoded(few, block, texts.data, block_spans) for few in (0, 1 << 30))
    assert together.rows.to_pydict() == one_by_one.rows.to_pydict()
    assert together.rows.num_rows >= rows // 2
    assert together.commits.tolist() == one_by_one.commits.tolist()
    assert together.xids.tolist() == one_by_one.xids.tolist()
    assert together.unstamped == one_by_one.unstamped


@pytest.mark.parametrize("policy", [{"immutable": True}, {"missing_stamp": "stop"}, {"on_truncate": "stop"}])
def test_a_policy_stops_groups_and_single_rows_at_the_same_row(policy: dict[str, object]) -> None:
    random = Random(7)
    texts, rows = Texts(random), 300
    entities = [replace(entity(name), **{"on_truncate": "publish", **policy}) for name in NAMES]  # type: ignore[arg-type]
    block = groups(random, entities, texts, rows)
    texts.data += bytes(INLINE)
    block_spans = spans(random, rows)
    together, one_by_one = (encoded(few, block, texts.data, block_spans) for few in (0, 1 << 30))
    assert isinstance(together.stop, ChangelogError)
    assert isinstance(one_by_one.stop, ChangelogError)
    assert together.stop.kind is Kind.STOP
    assert (str(together.stop), together.stop.position) == (str(one_by_one.stop), one_by_one.stop.position)
    before = [
        rows.filter(rows.column("position").to_numpy(zero_copy_only=False) < str(together.stop.position))
        for rows in (together.rows, one_by_one.rows)
    ]
    assert before[0].to_pydict() == before[1].to_pydict()
