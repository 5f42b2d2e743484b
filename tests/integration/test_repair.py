"""Tests that the signals `republish` and `rebuild` correct a changelog that differs from its table.

A *signal* is an operator's request, written into the database's log. A *ghost* is a row that the changelog holds and
the table lacks.

After `republish`, the service reads some rows or the whole table again. It deletes a ghost only if the signal names the
ghost's key.

After `rebuild`, the service reads the whole table again and deletes all ghosts. To find the ghosts, a *sweep* searches
the changelog.
"""

from pathlib import Path

import psycopg
import pytest

from changelog.connectors.capture.tables.repairs import Repairs
from changelog.connectors.sinks.files.layout import log_file, sequences
from changelog.connectors.sources.postgres.admin.signals import send
from changelog.envelope.signal import Signal
from tests.integration.repairs import ENTITIES, ROWS, begin, ended, items, plant, repair, table
from tests.integration.site import Site


@pytest.fixture
def site(database: str, tmp_path: Path) -> Site:
    return items(database, tmp_path)


def test_a_republish_of_keys_reads_only_these_keys_again(site: Site) -> None:
    begin(site)
    plant(site, ("7", {"id": 7, "name": "forged", "amount": 0}), ("8", None))
    before = len(site.messages("item"))
    with site.running() as service:
        repair(site, service, "republish", ("7", "8", "7"))
    assert site.ops("item")[before:] == [("read", "7"), ("read", "8")]
    assert site.state("item") == table(site)


def test_a_republish_deletes_a_ghost_only_once(site: Site) -> None:
    begin(site)
    ghost = {"id": 99, "name": "ghost", "amount": 1}
    plant(site, ("99", ghost))
    before = len(site.messages("item"))
    with site.running() as service:
        repair(site, service, "republish", ("99", "100", "not a number", "9" * 50, "\0", ""))
        repair(site, service, "republish", ("99", "5"), "again")
    assert site.ops("item")[before:] == [("delete", "99"), ("read", "5")]
    delete = site.messages("item")[before]["value"]
    assert (delete["original"], delete["current"]) == (ghost, None)
    assert site.state("item") == table(site)


def test_a_rebuild_makes_the_changelog_equal_to_the_table(site: Site) -> None:
    begin(site)
    plant(
        site,
        ("7", {"id": 7, "name": "forged", "amount": 0}),
        ("8", None),
        *((str(1000 + number), {"id": 1000 + number, "name": "ghost", "amount": 1}) for number in range(30)),
    )
    before = len(site.messages("item"))
    with site.running() as service:
        repair(site, service, "rebuild")
        site.sql("INSERT INTO item VALUES (1005, 'real', 2)")
        service.until(lambda: "1005" in site.state("item"))
    assert [op for op, _ in site.ops("item")[before:]] == ["read"] * ROWS + ["delete"] * 30 + ["create"]
    assert site.state("item") == table(site)


def test_a_republish_of_a_table_deletes_no_ghost(site: Site) -> None:
    begin(site)
    plant(site, ("7", {"id": 7, "name": "forged", "amount": 0}), ("99", {"id": 99, "name": "ghost", "amount": 1}))
    with site.running() as service:
        repair(site, service, "republish")
    assert site.state("item") == {**table(site), "99": {"id": 99, "name": "ghost", "amount": 1}}


def test_the_rows_of_keys_of_every_type_are_found(site: Site) -> None:
    """If no query can search for keys of a type, the service compares the keys of all rows with the requested keys."""
    site.sql(
        "CREATE EXTENSION citext", "CREATE TYPE mood AS ENUM ('so so', 'it''s')", "CREATE DOMAIN code AS varchar(9)"
    )
    kinds = {
        "text": ["''", "'it''s \"ü\\n{,}'", "E'tab\\t'", "'NULL'", "' b'"],
        "char(5)": ["'ab'", "''"],
        "uuid": ["'0fa0eb1e-5ce8-4b1e-9a0c-6a2f5a0f6ad1'"],
        "numeric": ["1.50", "'NaN'", "-0.000", "1e30"],
        "numeric(8,2)": ["1.5", "-3"],
        "bigint": ["-9223372036854775808", "5"],
        "float8": ["'-0'", "'infinity'", "1e-300", "0.1"],
        "boolean": ["true", "false"],
        "date": ["'2026-02-28'", "'infinity'", "'0044-03-15 BC'"],
        "timestamptz": ["'2026-02-28 12:00:00.5+03'", "'-infinity'", "'0044-03-15 BC'"],
        "timestamp": ["'2026-02-28 12:00:00.000001'"],
        "bytea": ["'\\x'", "'\\xdeadbeef'"],
        "interval": ["'1 day'", "'2 days'"],
        "inet": ["'10.0.0.1/8'"],
        '"char"': ["'x'"],
        "mood": ["'it''s'"],
        "code": ["'a'"],
        "citext": ["'Mixed'"],
        "jsonb": ['\'[1.0, {"b": 1, "a": null}]\'', "'\"s\"'"],
        "int[]": ["'{1,NULL}'", "'{}'"],
        "int4range": ["'[1,5)'"],
    }
    entities = ENTITIES
    for number, (kind, values) in enumerate(kinds.items()):
        rows = ", ".join(f"({value}, 'row')" for value in values)
        site.sql(f"CREATE TABLE t{number} (id {kind} PRIMARY KEY, name text)", f"INSERT INTO t{number} VALUES {rows}")
        entities += f'[entities.e{number}]\ntable = "public.t{number}"\n'
    site.sql(
        'CREATE TABLE pair (a int, "b""c" text, PRIMARY KEY (a, "b""c"))',
        "INSERT INTO pair VALUES (1, 'x'), (1, 'y\"'), (2, 'x')",
    )
    entities += '[entities.pair]\ntable = "public.pair"\nkey = ["b\\"c", "a"]\n'
    site.configure(entities)
    names = ["pair", *(f"e{number}" for number in range(len(kinds)))]
    invalid_keys = ('["x"]', '["x", "3"]', "none", "{", "'); DROP TABLE item; --")
    with site.running() as service:
        service.until(site.is_read)
        before = {name: site.state(name) for name in names}
        for name in names:
            keys = (*before[name], *(invalid_keys if name in ("pair", "e0", "e5", "e18") else ()))
            with psycopg.connect(site.dsn, autocommit=True) as connection:
                send(connection, Signal(do="republish", id=name, entity=name, keys=keys), None)
        service.until(lambda: all(ended(site, name) for name in names))
    for name in names:
        ops = site.ops(name)
        assert sorted(ops) == sorted([("read", key) for key in before[name]] * 2), name
        assert site.state(name) == before[name], name
    assert len(before["pair"]) == 3
    assert [len(before[f"e{number}"]) for number in range(len(kinds))] == [len(literals) for literals in kinds.values()]


def test_a_republish_of_very_many_keys_reads_the_whole_table(site: Site) -> None:
    begin(site)
    ghost = {"id": 999, "name": "ghost", "amount": 1}
    plant(site, ("999", ghost))
    before = len(site.messages("item"))
    with psycopg.connect(site.dsn, autocommit=True) as connection:
        for number in (0, 1):
            keys = tuple(str(10_000 * number + offset) for offset in range(9_000))
            send(connection, Signal(do="republish", id=f"s{number}", entity="item", keys=keys), None)
    with site.running() as service:
        service.until(lambda: ended(site, "s0") and ended(site, "s1"))
    assert sorted(site.ops("item")[before:]) == [("delete", "999"), *sorted([("read", key) for key in table(site)])]


def test_columns_are_no_longer_stale_after_the_table_is_published_again(site: Site) -> None:
    site.configure(ENTITIES + '[schemas]\non_restated = "ask"\n')
    with site.running() as service:
        service.until(site.is_read)
        site.sql("ALTER TABLE item ADD COLUMN stock int DEFAULT 7", "INSERT INTO item VALUES (201, 'new', 1)")
        service.until(lambda: site.checkpoint.windows["item"] == {"complete": True, "stale": ["stock"]})
        repair(site, service, "republish", ("3",), "k")
        assert site.checkpoint.windows["item"] == {"complete": True, "stale": ["stock"]}
        repair(site, service, "rebuild")
        assert site.checkpoint.windows["item"] == {"complete": True}
    assert site.state("item") == table(site)


def test_the_delete_of_a_ghost_has_only_the_values_of_columns_that_still_exist(site: Site) -> None:
    site.configure(ENTITIES + '[schemas]\non_incompatible = "publish"\n')
    begin(site)
    plant(site, ("999", {"id": 999, "name": "ghost", "amount": 1}))
    with site.running() as service:
        site.sql("ALTER TABLE item DROP COLUMN amount", "ALTER TABLE item ADD COLUMN stock int")
        site.sql("INSERT INTO item VALUES (201, 'new', 1)")
        service.until(lambda: "201" in site.state("item"))
        repair(site, service, "rebuild")
    [delete] = [message["value"] for message in site.messages("item") if message["key"] == "999"][1:]
    assert delete["original"] == {"id": 999, "name": "ghost"}
    assert delete["provenance"]["source"]["unavailableOriginal"] == ["stock"]
    assert site.state("item") == table(site)


def test_an_immutable_entity_keeps_rows_that_its_table_no_longer_has(site: Site) -> None:
    site.configure(ENTITIES + 'immutable = true\non_change_of_immutable = "ignore"\n')
    with site.running() as service:
        service.until(site.is_read)
        site.sql("DELETE FROM item WHERE id = 7")
        repair(site, service, "rebuild")
        repair(site, service, "republish", ("7",), "k")
        assert site.state("item").keys() == {str(number) for number in range(1, ROWS + 1)}


def test_after_a_truncate_a_rebuild_deletes_nothing(site: Site) -> None:
    site.configure(ENTITIES + 'on_truncate = "publish"\npartitions = 3\n')
    with site.running() as service:
        service.until(site.is_read)
        site.sql("TRUNCATE item", "INSERT INTO item VALUES (5, 'after', 1)")
        repair(site, service, "republish", ("5", "6"), "k")
        repair(site, service, "rebuild")
    assert [op for op, _ in site.ops("item")[ROWS:]] == ["truncate"] * 3 + ["create", "read", "read"]


def test_a_partitioned_table_is_repaired(site: Site) -> None:
    site.sql(
        "CREATE TABLE place (id int, region int, name text, PRIMARY KEY (id, region)) PARTITION BY LIST (region)",
        "CREATE TABLE place_a PARTITION OF place FOR VALUES IN (0, 1)",
        "CREATE TABLE place_b PARTITION OF place DEFAULT",
        "INSERT INTO place SELECT n, n % 4, 'name' FROM generate_series(1, 20) AS n",
    )
    site.configure(ENTITIES + '[entities.place]\ntable = "public.place"\npartitions = 2\n')
    with site.running() as service:
        service.until(site.is_read)
        keys = ('["1","1"]', '["2","2"]', '["2","3"]')
        with psycopg.connect(site.dsn, autocommit=True) as connection:
            send(connection, Signal(do="republish", id="k", entity="place", keys=keys), None)
            send(connection, Signal(do="rebuild", id="r", entity="place"), None)
        service.until(lambda: ended(site, "k") and ended(site, "r"))
    assert len(site.state("place")) == 20


def test_a_table_that_was_temporarily_not_in_the_publication_is_rebuilt(site: Site) -> None:
    begin(site)
    site.sql(
        f'ALTER PUBLICATION "{site.name}" DROP TABLE item',
        "INSERT INTO item VALUES (60, 'hidden', 1)",
        "DELETE FROM item WHERE id < 10",
        "UPDATE item SET name = 'other' WHERE id = 20",
    )
    assert "add the table again and start the service" in site.refused()
    site.sql(f'ALTER PUBLICATION "{site.name}" ADD TABLE ONLY item')
    with site.running() as service:
        repair(site, service, "rebuild")
    assert site.state("item") == table(site)


def test_a_damaged_changelog_fails_the_sweep_but_does_not_stop_the_service(site: Site) -> None:
    begin(site)
    for key in ("998", "999"):
        plant(site, (key, {"id": int(key), "name": "ghost", "amount": 1}))
    damaged_file = log_file(site.log, sequences(site.log)[-2])
    contents = damaged_file.read_bytes()
    with site.running() as service:
        damaged_file.write_bytes(contents[:-100])
        repair(site, service, "rebuild")
        assert Repairs.parse(site.checkpoint.repairs).ended == {"s": "failed"}
        assert service.said("the sweep cannot read the changelog")
        error = site.refused("rebuild", "item")
        assert "the service could not search the changelog for keys that the table lacks" in error
        damaged_file.write_bytes(contents)
        repair(site, service, "rebuild", id_="again")
    assert site.state("item") == table(site)


def test_a_ghost_that_is_not_a_json_object_is_deleted_too(site: Site) -> None:
    begin(site)
    plant(site, ("998", "no object"), ("999", [1]))
    with site.running() as service:
        repair(site, service, "rebuild")
    assert site.ops("item")[-2:] == [("delete", "998"), ("delete", "999")]
    assert site.state("item") == table(site)
