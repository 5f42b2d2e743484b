"""Signals have the service read tables again: some keys, a whole table, and what the table lacks is deleted."""

import contextlib
import io
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from msgspec import Raw

from changelog.connectors.capture.tables.repairs import Repairs
from changelog.connectors.sinks.files.layout import log_file, sequences
from changelog.connectors.sinks.files.log import read_log
from changelog.connectors.sinks.files.sink import FileSink
from changelog.connectors.sources.postgres.admin.signals import send
from changelog.envelope.columnar import batch
from changelog.envelope.model import MISSING, Envelope, Op, Record
from changelog.envelope.position import Position
from changelog.envelope.signal import Do, Signal, Signing, encode
from tests.integration.site import Running, Site

ENTITIES = """
[entities.item]
table = "public.item"
"""

ROWS = 50


@pytest.fixture
def site(database: str, tmp_path: Path) -> Site:
    found = Site(database, tmp_path)
    found.sql(
        "CREATE TABLE item (id int PRIMARY KEY, name text, amount int)",
        "ALTER TABLE item REPLICA IDENTITY FULL",
        f"INSERT INTO item SELECT n, 'item ' || n, n FROM generate_series(1, {ROWS}) AS n",
    )
    found.configure(ENTITIES)
    return found


def table(site: Site) -> dict[str, Any]:
    return {str(row["id"]): row for (row,) in site.sql("SELECT to_json(item) FROM item")}


def begun(site: Site) -> None:
    """A changelog that has the table, and no service."""
    with site.running() as service:
        service.until(site.is_read)


def plant(site: Site, *changes: tuple[str, Any]) -> None:
    """Rows that no source ever had, or states that it never had, at the end of the log: by the sink itself.

    A change is a key and a state, None for a delete.
    """
    last = [record for rows in read_log(site.log, entity="item") for record in batch.records(rows)][-1]
    sink = FileSink(site.log)
    checkpoint = sink.recover()
    assert checkpoint is not None
    assert checkpoint.position is not None
    position, forged = checkpoint.position, []
    for key, state in changes:
        position = Position(position.epoch, position.commit, position.ordinal + 2)
        forged.append(like(last, key, state, position))
    sink.add([batch.from_records(forged)])
    sink.commit(replace(checkpoint, position=position))
    sink.close()


def like(record: Record, key: str, state: Any, position: Position) -> Record:
    """A record as this one, of another key and state, at another position."""
    told = record.envelope.provenance
    source = replace(told.source, op=Op.DELETE if state is None else Op.UPDATE, position=position)
    current = None if state is None else Raw(json.dumps(state).encode())
    envelope = Envelope(provenance=replace(told, source=source), current=current, original=MISSING)
    return replace(record, place=replace(record.place, key=key), envelope=envelope)


def signal(site: Site, do: Do, entity: str | None = "item", keys: tuple[str, ...] | None = None, id_: str = "s") -> str:
    with psycopg.connect(site.dsn, autocommit=True) as connection:
        send(connection, Signal(do=do, id=id_, entity=entity, keys=keys), None)
    return id_


def ended(site: Site, id_: str = "s") -> bool:
    return id_ in Repairs.parse(site.checkpoint.repairs).ended


def repaired(site: Site, service: Running, do: Do, keys: tuple[str, ...] | None = None, id_: str = "s") -> None:
    signal(site, do, keys=keys, id_=id_)
    service.until(lambda: ended(site, id_))


def test_asked_keys_are_read_again_and_nothing_else(site: Site) -> None:
    begun(site)
    plant(site, ("7", {"id": 7, "name": "forged", "amount": 0}), ("8", None))
    before = len(site.messages("item"))
    with site.running() as service:
        repaired(site, service, "republish", ("7", "8", "7"))
    assert site.ops("item")[before:] == [("read", "7"), ("read", "8")]
    assert site.state("item") == table(site)


def test_asked_keys_that_the_table_lacks_are_deleted_once(site: Site) -> None:
    begun(site)
    ghost = {"id": 99, "name": "ghost", "amount": 1}
    plant(site, ("99", ghost))
    before = len(site.messages("item"))
    with site.running() as service:
        repaired(site, service, "republish", ("99", "100", "not a number", "9" * 50, "\0", ""))
        repaired(site, service, "republish", ("99", "5"), "again")
    assert site.ops("item")[before:] == [("delete", "99"), ("read", "5")]
    deleted = site.messages("item")[before]["value"]
    assert (deleted["original"], deleted["current"]) == (ghost, None)
    assert site.state("item") == table(site)


def test_a_rebuild_makes_the_changelog_equal_to_the_table(site: Site) -> None:
    begun(site)
    plant(
        site,
        ("7", {"id": 7, "name": "forged", "amount": 0}),
        ("8", None),
        *((str(1000 + number), {"id": 1000 + number, "name": "ghost", "amount": 1}) for number in range(30)),
    )
    before = len(site.messages("item"))
    with site.running() as service:
        repaired(site, service, "rebuild")
        site.sql("INSERT INTO item VALUES (1005, 'real', 2)")
        service.until(lambda: "1005" in site.state("item"))
    assert [op for op, _ in site.ops("item")[before:]] == ["read"] * ROWS + ["delete"] * 30 + ["create"]
    assert site.state("item") == table(site)


def test_a_table_published_again_keeps_what_it_lacks(site: Site) -> None:
    begun(site)
    plant(site, ("7", {"id": 7, "name": "forged", "amount": 0}), ("99", {"id": 99, "name": "ghost", "amount": 1}))
    with site.running() as service:
        repaired(site, service, "republish")
    assert site.state("item") == {**table(site), "99": {"id": 99, "name": "ghost", "amount": 1}}


def test_keys_of_every_type_find_their_rows(site: Site) -> None:
    """Also those of which no value can be made: then the whole table is looked through."""
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
    strange = ('["x"]', '["x", "3"]', "none", "{", "'); DROP TABLE item; --")
    with site.running() as service:
        service.until(site.is_read)
        before = {name: site.state(name) for name in names}
        for name in names:
            keys = (*before[name], *(strange if name in ("pair", "e0", "e5", "e18") else ()))
            with psycopg.connect(site.dsn, autocommit=True) as connection:
                send(connection, Signal(do="republish", id=name, entity=name, keys=keys), None)
        service.until(lambda: all(ended(site, name) for name in names))
    for name in names:
        ops = site.ops(name)
        assert sorted(ops) == sorted([("read", key) for key in before[name]] * 2), name
        assert site.state(name) == before[name], name
    assert len(before["pair"]) == 3
    assert [len(before[f"e{number}"]) for number in range(len(kinds))] == [len(each) for each in kinds.values()]


def test_what_is_no_signal_or_none_of_ours_is_counted_and_stops_nothing(site: Site) -> None:
    secret = "sixteen characters"
    site.configure(ENTITIES + f'[signals]\nsecret = "{secret}"\n')
    good = Signal(do="republish", id="good", entity="item", keys=("5",))
    bad = [
        encode(replace(good, id="unsigned"), None),
        encode(replace(good, id="wrong"), Signing(secret=b"another secret of 16", cluster="1", transaction=1)),
        encode(replace(good, id="copied"), Signing(secret=secret.encode(), cluster="1", transaction=1)),
        b"{",
        b"",
        b"\xff\xfe\x00",
        b'{"do": "republish"}',
        b'{"padding": "' + b"x" * (3 << 20) + b'"}',
        b"[" * 100_000,
    ]
    with site.running() as service:
        service.until(site.is_read)
        before = len(site.messages("item"))
        with psycopg.connect(site.dsn, autocommit=True) as connection:
            for content in (*bad, b"0" * 32):
                connection.execute("SELECT pg_logical_emit_message(true, 'changelog', %s)", [content])
            connection.execute("SELECT pg_logical_emit_message(false, 'changelog', %s)", [encode(good, None)])
            send(connection, replace(good, id="other", service="somebody else"), secret.encode())
            send(connection, replace(good, id="unknown", entity="nobody"), secret.encode())
            send(connection, good, secret.encode())
            send(connection, good, secret.encode())
        service.until(lambda: ended(site, "good"))
        service.until(lambda: f"changelog_signals_ignored_total {len(bad) + 1}.0" in service.get("metrics"))
        assert "changelog_repairs_open 0.0" in service.get("metrics")
    assert site.ops("item")[before:] == [("read", "5")]
    told = [each for each in service.events() if each["event"] == "signals ignored"]
    assert 0 < len(told) < len(bad)
    assert secret not in str(service.events())


def test_more_keys_than_are_kept_have_the_whole_table_read(site: Site) -> None:
    begun(site)
    ghost = {"id": 999, "name": "ghost", "amount": 1}
    plant(site, ("999", ghost))
    before = len(site.messages("item"))
    with psycopg.connect(site.dsn, autocommit=True) as connection:
        for number in (0, 1):
            keys = tuple(str(10_000 * number + each) for each in range(9_000))
            send(connection, Signal(do="republish", id=f"s{number}", entity="item", keys=keys), None)
    with site.running() as service:
        service.until(lambda: ended(site, "s0") and ended(site, "s1"))
    assert sorted(site.ops("item")[before:]) == [("delete", "999"), *sorted([("read", key) for key in table(site)])]


def test_a_repair_is_paused_resumed_and_cancelled(site: Site) -> None:
    begun(site)
    ghost = {"id": 999, "name": "ghost", "amount": 1}
    plant(site, ("999", ghost))
    before = len(site.messages("item"))
    with site.running() as service:
        repaired(site, service, "pause", id_="p1")
        signal(site, "rebuild", id_="r1")
        service.until(lambda: Repairs.parse(site.checkpoint.repairs).knows("r1"))
        site.sql("INSERT INTO item VALUES (60, 'streamed', 1)")
        service.until(lambda: "60" in site.state("item"))
        assert site.ops("item")[before:] == [("create", "60")]
        assert "item: its table is not read until `changelog signal resume item`" in status(site)
        repaired(site, service, "cancel", id_="c1")
        assert Repairs.parse(site.checkpoint.repairs).ended["r1"] == "cancelled"
        assert site.is_read()
        repaired(site, service, "resume", id_="u1")
        repaired(site, service, "republish", ("3",), id_="k1")
        assert site.ops("item")[before:] == [("create", "60"), ("read", "3")]
        repaired(site, service, "rebuild", id_="r2")
    assert site.state("item") == table(site)


def status(site: Site) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert site.call("status")[0] == 0
    return out.getvalue()


def test_the_first_reading_of_a_table_can_be_paused_and_not_cancelled(site: Site) -> None:
    begun(site)
    site.sql(
        "CREATE TABLE late (id int PRIMARY KEY)",
        "INSERT INTO late VALUES (1), (2), (3)",
        f'ALTER PUBLICATION "{site.name}" ADD TABLE ONLY late',
    )
    site.configure(ENTITIES + '[entities.late]\ntable = "public.late"\n')
    with psycopg.connect(site.dsn) as lingering:
        lingering.execute("SELECT pg_current_xact_id()")  # chunks wait for who runs when the service starts
        with site.running() as service:
            service.until(lambda: "late" in site.checkpoint.windows)
            signal(site, "pause", "late", id_="p")
            signal(site, "cancel", "late", id_="c")
            service.until(lambda: ended(site, "c") and service.said("opening the source again"))
            lingering.rollback()
            site.sql("INSERT INTO item VALUES (60, 'streamed', 1)")
            service.until(lambda: "60" in site.state("item"))
            assert not site.checkpoint.windows["late"]["complete"]
            assert "late" not in {each["entity"] for each in site.messages()}
            signal(site, "rebuild", "late", id_="r")
            signal(site, "resume", "late", id_="u")
            service.until(lambda: ended(site, "r"))
            assert site.ops("late") == [("read", "1"), ("read", "2"), ("read", "3")]


def test_what_is_stale_is_not_any_more_once_the_table_is_published_again(site: Site) -> None:
    site.configure(ENTITIES + '[schemas]\non_restated = "ask"\n')
    with site.running() as service:
        service.until(site.is_read)
        site.sql("ALTER TABLE item ADD COLUMN stock int DEFAULT 7", "INSERT INTO item VALUES (201, 'new', 1)")
        service.until(lambda: site.checkpoint.windows["item"] == {"complete": True, "stale": ["stock"]})
        repaired(site, service, "republish", ("3",), "k")
        assert site.checkpoint.windows["item"] == {"complete": True, "stale": ["stock"]}
        repaired(site, service, "rebuild")
        assert site.checkpoint.windows["item"] == {"complete": True}
    assert site.state("item") == table(site)


def test_a_ghost_from_before_its_columns_changed_is_deleted_with_what_still_fits(site: Site) -> None:
    site.configure(ENTITIES + '[schemas]\non_incompatible = "publish"\n')
    begun(site)
    plant(site, ("999", {"id": 999, "name": "ghost", "amount": 1}))
    with site.running() as service:
        site.sql("ALTER TABLE item DROP COLUMN amount", "ALTER TABLE item ADD COLUMN stock int")
        site.sql("INSERT INTO item VALUES (201, 'new', 1)")
        service.until(lambda: "201" in site.state("item"))
        repaired(site, service, "rebuild")
    [deleted] = [each["value"] for each in site.messages("item") if each["key"] == "999"][1:]
    assert deleted["original"] == {"id": 999, "name": "ghost"}
    assert deleted["provenance"]["source"]["unavailableOriginal"] == ["stock"]
    assert site.state("item") == table(site)


def test_an_immutable_entity_keeps_what_its_table_forgot(site: Site) -> None:
    site.configure(ENTITIES + 'immutable = true\non_change_of_immutable = "ignore"\n')
    with site.running() as service:
        service.until(site.is_read)
        site.sql("DELETE FROM item WHERE id = 7")
        repaired(site, service, "rebuild")
        repaired(site, service, "republish", ("7",), "k")
        assert site.state("item").keys() == {str(number) for number in range(1, ROWS + 1)}


def test_a_truncate_leaves_nothing_to_delete(site: Site) -> None:
    site.configure(ENTITIES + 'on_truncate = "publish"\npartitions = 3\n')
    with site.running() as service:
        service.until(site.is_read)
        site.sql("TRUNCATE item", "INSERT INTO item VALUES (5, 'after', 1)")
        repaired(site, service, "republish", ("5", "6"), "k")
        repaired(site, service, "rebuild")
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


def test_the_commands_ask_wait_and_say_what_came_of_it(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    begun(site)
    ghost = {"id": 999, "name": "ghost", "amount": 1}
    plant(site, ("999", ghost), ("7", {"id": 7, "name": "forged", "amount": 0}))
    assert "has no entity nobody; it has: item" in site.refused("rebuild", "nobody", code=2)
    assert site.call("signal", "pause", "--no-wait")[0] == 0
    assert "it handles the signal when it starts" in capsys.readouterr().out
    report = site.folder / "run" / "report.json"
    report.parent.mkdir()
    report.write_text(json.dumps({"kind": "changelog-drift-report", "format": 1, "keys": "keys.jsonl", "run": {}}))
    lines = [{"entity": "item", "key": "7", "kind": "changed"}, {"entity": "other", "key": "8", "kind": "extra"}]
    keys = report.with_name("keys.jsonl")
    keys.write_text("".join(json.dumps(line) + "\n" for line in lines))
    before = len(site.messages("item"))
    with site.running() as service:
        service.until(lambda: bool(Repairs.parse(site.checkpoint.repairs).paused))
        assert site.call("republish", "item", "--all")[0] == 0
        assert "not read until `changelog signal resume item`" in capsys.readouterr().out
        assert site.call("signal", "cancel")[0] == 0
        assert site.call("signal", "resume", "item")[0] == 0
        assert capsys.readouterr().out.splitlines() == ["cancel all: done", "resume item: done"]
        for file in (report, keys):
            assert site.call("republish", "item", "--report", str(file), "--json")[0] == 0
            told = json.loads(capsys.readouterr().out)
            assert (told["do"], told["entity"], told["keys"], told["outcome"]) == ("republish", "item", 1, "done")
        assert site.ops("item")[before:] == [("read", "7")] * 2
        assert site.call("republish", "item", "--keys", "7", "no such", "nor this")[0] == 0
        assert capsys.readouterr().out == "republish item: done; 2 of 3 keys are not in the table\n"
        assert site.call("republish", "item", "--keys", "7", "no such", "--json")[0] == 0
        assert json.loads(capsys.readouterr().out)["absent"] == 1
        assert site.call("rebuild", "item")[0] == 0
        assert capsys.readouterr().out == "rebuild item: done\n"
        assert site.call("status", "--json")[0] == 0
        assert json.loads(capsys.readouterr().out)["repairs"] == {"open": {}, "paused": []}
        site.configure(ENTITIES + '[signals]\nsecret = "not the one it has"\n')
        assert site.call("rebuild", "item")[0] == 0  # the service has no secret, and takes a signed one, too
    assert site.state("item") == table(site)
    report.write_text("{}")
    assert "is not of a drift report" in site.refused("republish", "item", "--report", str(report), code=2)


def test_a_signal_that_the_service_does_not_obey_is_an_error(site: Site) -> None:
    site.configure(ENTITIES + '[signals]\nsecret = "the one that it has"\n')
    with site.running() as service:
        service.until(site.is_read)
        site.configure(ENTITIES)
        write = threading.Timer(1.0, site.sql, ["INSERT INTO item VALUES (60, 'stored behind the signal', 1)"])
        write.start()
        told = site.refused("republish", "item", "--keys", "7")
        write.join()
        assert "did not obey it" in told
        assert "[signals] secret" in told
    assert site.ops("item")[ROWS:] == [("create", "60")]


def test_check_asks_for_a_secret_where_others_may_log_in(
    site: Site, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    def told() -> tuple[str, str | None]:
        site.call("check", "--json")
        [found] = [each for each in json.loads(capsys.readouterr().out) if each["name"] == "signals"]
        return found["status"], found["hint"]

    role = f"other_{site.name}"
    site.sql(f'CREATE ROLE "{role}" LOGIN')
    request.addfinalizer(lambda: site.sql(f'DROP ROLE "{role}"'))
    assert told() == ("warn", 'set [signals] secret = "env:NAME"')
    site.configure(ENTITIES + '[signals]\nsecret = "sixteen characters"\n')
    assert told() == ("ok", None)


def test_a_table_that_the_publication_left_out_for_a_while_is_rebuilt(site: Site) -> None:
    begun(site)
    site.sql(
        f'ALTER PUBLICATION "{site.name}" DROP TABLE item',
        "INSERT INTO item VALUES (60, 'unheard of', 1)",
        "DELETE FROM item WHERE id < 10",
        "UPDATE item SET name = 'other' WHERE id = 20",
    )
    assert "add it again and start the service" in site.refused()
    site.sql(f'ALTER PUBLICATION "{site.name}" ADD TABLE ONLY item')
    with site.running() as service:
        repaired(site, service, "rebuild")
    assert site.state("item") == table(site)


def test_a_changelog_that_cannot_be_read_ends_the_sweep_and_not_the_service(site: Site) -> None:
    begun(site)
    for key in ("998", "999"):
        plant(site, (key, {"id": int(key), "name": "ghost", "amount": 1}))
    damaged = log_file(site.log, sequences(site.log)[-2])
    kept = damaged.read_bytes()
    with site.running() as service:
        damaged.write_bytes(kept[:-100])
        repaired(site, service, "rebuild")
        assert Repairs.parse(site.checkpoint.repairs).ended == {"s": "failed"}
        assert service.said("the sweep cannot read the changelog")
        told = site.refused("rebuild", "item")
        assert "what it lacks could not be looked for" in told
        damaged.write_bytes(kept)
        repaired(site, service, "rebuild", id_="again")
    assert site.state("item") == table(site)


def test_a_ghost_that_is_no_object_is_deleted_all_the_same(site: Site) -> None:
    begun(site)
    plant(site, ("998", "no object"), ("999", [1]))
    with site.running() as service:
        repaired(site, service, "rebuild")
    assert site.ops("item")[-2:] == [("delete", "998"), ("delete", "999")]
    assert site.state("item") == table(site)
