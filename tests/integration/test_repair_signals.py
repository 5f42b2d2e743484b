"""Tests signals that pause, resume and cancel repairs, and signals that the service ignores. Also tests the commands
that send signals.

A *signal* is an operator's request, written into the database's log.
"""

import contextlib
import io
import json
import threading
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from changelog.connectors.capture.tables.repairs import Repairs
from changelog.connectors.sources.postgres.admin.signals import send
from changelog.envelope.signal import Signal, Signing, encode
from tests.integration.repairs import ENTITIES, ROWS, begin, ended, items, plant, repair, signal, table
from tests.integration.site import Running, Site


@pytest.fixture
def site(database: str, tmp_path: Path) -> Site:
    return items(database, tmp_path)


def test_invalid_and_foreign_signals_are_counted_and_ignored(site: Site) -> None:
    secret = "sixteen characters"
    site.configure(ENTITIES + f'[signals]\nsecret = "{secret}"\n')
    good = Signal(do="republish", id="good", entity="item", keys=("5",))
    bad_signals = [
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
            for content in (*bad_signals, b"0" * 32):
                connection.execute("SELECT pg_logical_emit_message(true, 'changelog', %s)", [content])
            connection.execute("SELECT pg_logical_emit_message(false, 'changelog', %s)", [encode(good, None)])
            send(connection, replace(good, id="other", service="somebody else"), secret.encode())
            send(connection, replace(good, id="unknown", entity="nobody"), secret.encode())
            send(connection, good, secret.encode())
            send(connection, good, secret.encode())
        service.until(lambda: ended(site, "good"))
        service.until(lambda: f"changelog_signals_ignored_total {len(bad_signals) + 1}.0" in service.get("metrics"))
        assert "changelog_repairs_open 0.0" in service.get("metrics")
    assert site.ops("item")[before:] == [("read", "5")]
    warnings = [event for event in service.events() if event["event"] == "signals ignored"]
    assert 0 < len(warnings) < len(bad_signals)
    assert secret not in str(service.events())


def test_a_repair_is_paused_resumed_and_cancelled(site: Site) -> None:
    begin(site)
    ghost = {"id": 999, "name": "ghost", "amount": 1}
    plant(site, ("999", ghost))
    before = len(site.messages("item"))
    with site.running() as service:
        repair(site, service, "pause", id_="p1")
        signal(site, "rebuild", id_="r1")
        service.until(lambda: Repairs.parse(site.checkpoint.repairs).knows("r1"))
        site.sql("INSERT INTO item VALUES (60, 'streamed', 1)")
        service.until(lambda: "60" in site.state("item"))
        assert site.ops("item")[before:] == [("create", "60")]
        assert "item: its table is not read until `changelog signal resume item`" in status(site)
        repair(site, service, "cancel", id_="c1")
        assert Repairs.parse(site.checkpoint.repairs).ended["r1"] == "cancelled"
        assert site.is_read()
        repair(site, service, "resume", id_="u1")
        repair(site, service, "republish", ("3",), id_="k1")
        assert site.ops("item")[before:] == [("create", "60"), ("read", "3")]
        repair(site, service, "rebuild", id_="r2")
    assert site.state("item") == table(site)


def status(site: Site) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert site.call("status")[0] == 0
    return out.getvalue()


def test_the_first_read_of_a_table_can_be_paused_but_not_cancelled(site: Site) -> None:
    begin(site)
    site.sql(
        "CREATE TABLE late (id int PRIMARY KEY)",
        "INSERT INTO late VALUES (1), (2), (3)",
        f'ALTER PUBLICATION "{site.name}" ADD TABLE ONLY late',
    )
    site.configure(ENTITIES + '[entities.late]\ntable = "public.late"\n')
    with psycopg.connect(site.dsn) as open_transaction:
        open_transaction.execute("SELECT pg_current_xact_id()")  # no chunk can be read before this transaction ends
        with site.running() as service:
            service.until(lambda: "late" in site.checkpoint.windows)
            signal(site, "pause", "late", id_="p")
            signal(site, "cancel", "late", id_="c")
            service.until(lambda: ended(site, "c") and service.said("opening the source again"))
            open_transaction.rollback()
            site.sql("INSERT INTO item VALUES (60, 'streamed', 1)")
            service.until(lambda: "60" in site.state("item"))
            assert not site.checkpoint.windows["late"]["complete"]
            assert "late" not in {message["entity"] for message in site.messages()}
            signal(site, "rebuild", "late", id_="r")
            signal(site, "resume", "late", id_="u")
            service.until(lambda: ended(site, "r"))
            assert site.ops("late") == [("read", "1"), ("read", "2"), ("read", "3")]


def test_the_commands_send_signals_wait_and_print_the_outcome(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    begin(site)
    ghost = {"id": 999, "name": "ghost", "amount": 1}
    plant(site, ("999", ghost), ("7", {"id": 7, "name": "forged", "amount": 0}))
    assert "has no entity nobody; it has: item" in site.refused("rebuild", "nobody", code=2)
    assert site.call("signal", "pause", "--no-wait")[0] == 0
    assert "the service handles the signal when it starts" in capsys.readouterr().out
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
            result = json.loads(capsys.readouterr().out)
            assert (result["do"], result["entity"], result["keys"], result["outcome"]) == (
                "republish",
                "item",
                1,
                "done",
            )
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
        assert site.call("rebuild", "item")[0] == 0  # the running service knows no secret, so it obeys any signal
    assert site.state("item") == table(site)
    report.write_text("{}")
    assert "does not belong to a drift report" in site.refused("republish", "item", "--report", str(report), code=2)


def test_a_command_fails_if_the_service_does_not_obey_its_signal(site: Site) -> None:
    site.configure(ENTITIES + '[signals]\nsecret = "the one that it has"\n')
    with site.running() as service:
        service.until(site.is_read)
        site.configure(ENTITIES)
        writer = threading.Thread(target=_write_after_an_ignored_signal, args=(site, service))
        writer.start()
        error = site.refused("republish", "item", "--keys", "7")
        writer.join()
        assert "did not obey it" in error
        assert "[signals] secret" in error
    assert site.ops("item")[ROWS:] == [("create", "60")]


def _write_after_an_ignored_signal(site: Site, service: Running) -> None:
    """Writes a row after the service has ignored the signal. Once this row is published, the waiting command knows that
    the service has read the signal and not obeyed it.
    """
    service.until(lambda: "changelog_signals_ignored_total 1.0" in service.get("metrics"))
    site.sql("INSERT INTO item VALUES (60, 'written after the signal', 1)")


def test_check_asks_for_a_secret_if_other_roles_may_log_in(
    site: Site, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    def signals_finding() -> tuple[str, str | None]:
        site.call("check", "--json")
        [finding] = [entry for entry in json.loads(capsys.readouterr().out) if entry["name"] == "signals"]
        return finding["status"], finding["hint"]

    role = f"other_{site.name}"
    site.sql(f'CREATE ROLE "{role}" LOGIN')
    request.addfinalizer(lambda: site.sql(f'DROP ROLE "{role}"'))
    assert signals_finding() == ("warn", 'set [signals] secret = "env:NAME"')
    site.configure(ENTITIES + '[signals]\nsecret = "sixteen characters"\n')
    assert signals_finding() == ("ok", None)
