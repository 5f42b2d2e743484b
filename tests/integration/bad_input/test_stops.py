"""Tests every kind of change at which the service stops until an operator decides what to do with the change.

Until the operator decides, each start of the service reports the same error, and so does `changelog check`. After the
decision, the service continues.
"""

import json
import re
from dataclasses import dataclass

import psycopg
import pytest

from changelog.envelope.entity import TRUNCATE_KEY
from tests.integration.bad_input import ONE
from tests.integration.site import Site

ALL = ("default", "skip", "dead-letter")
OTHERS = ("skip", "dead-letter")

EMAIL = ("ALTER TABLE guest ALTER email SET NOT NULL", "CREATE UNIQUE INDEX guest_email ON guest (email)")
FULL = "ALTER TABLE guest REPLICA IDENTITY FULL"

STAMPED = """
BEGIN;
SELECT pg_logical_emit_message(true, 'provenance', '{"serviceName": "a"}');
INSERT INTO guest (id, name, email) VALUES (3, 'Cy', 'cy@example.org');
COMMIT
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Statements that make the service stop with the error `message` when it reads their changes.

    `setup` prepares the table. `cause` makes the changes, and `repair` then repairs the table, both while the service
    is not running. The service stops once for each of the last `stops` statements of `cause`.

    `default_ops` lists the messages that the service publishes after the decision `default`, each as operation and key.
    It is None if `default` is not allowed. `last_key` is the key of a row that is written after the cause.
    """

    message: str
    cause: tuple[str, ...]
    stops: int = 1
    settings: str = ""
    setup: tuple[str, ...] = ()
    repair: tuple[str, ...] = ()
    default_ops: tuple[tuple[str, str], ...] | None = None
    last_key: str = "3"

    @property
    def choices(self) -> tuple[str, ...]:
        """The decisions that `changelog accept` allows."""
        return OTHERS if self.default_ops is None else ALL


CASES = {
    "truncate": Case(
        message="the table public.guest was truncated",
        cause=("TRUNCATE guest",),
        default_ops=(("truncate", TRUNCATE_KEY),),
    ),
    "immutable": Case(
        message="a row of the table public.guest was changed, and the entity guest is immutable",
        cause=("UPDATE guest SET name = 'x'",),
        settings="immutable = true",
    ),
    "unstamped": Case(
        message="a change of the table public.guest has no provenance stamp",
        cause=("INSERT INTO guest VALUES (2)",),
        settings="[provenance]\nmissing = 'stop'",
        default_ops=(("create", "2"),),
    ),
    "key column gone": Case(
        message="entity guest: key column id is no longer in the table public.guest",
        cause=("ALTER TABLE guest DROP id", "INSERT INTO guest VALUES ('Bo')", "DELETE FROM guest"),
        stops=2,
        repair=("ALTER TABLE guest ADD id int PRIMARY KEY",),
    ),
    "null in the key": Case(
        message="the log holds no value for the key or partition column email of the table public.guest",
        setup=EMAIL,
        cause=(
            "ALTER TABLE guest ALTER email DROP NOT NULL",
            "INSERT INTO guest VALUES (2)",
            "UPDATE guest SET email = 'bo@example.org' WHERE id = 2",
        ),
        stops=2,
        settings='key = ["email"]',
        repair=("ALTER TABLE guest ALTER email SET NOT NULL",),
        last_key="cy@example.org",
    ),
    "identity without the key": Case(
        message="the log holds no value for the key or partition column id of the table public.guest",
        setup=EMAIL,
        cause=(
            "ALTER TABLE guest REPLICA IDENTITY USING INDEX guest_email",
            "UPDATE guest SET name = 'x'",
            "UPDATE guest SET email = 'y'",
            "DELETE FROM guest",
        ),
        stops=3,
        repair=(FULL,),
    ),
}


@pytest.mark.parametrize(
    ("name", "decision"), [(name, decision) for name, case in CASES.items() for decision in case.choices]
)
def test_a_stop_is_reported_and_an_operator_gets_past_it(
    site: Site, name: str, decision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    site.sql("SELECT", *case.setup)
    site.configure(ONE + case.settings)
    with site.running() as running:
        running.until(site.is_read)
    ops_before = site.ops("guest")
    site.sql(*case.cause, *case.repair, STAMPED)
    last_position = ""
    for _ in range(case.stops):
        position = stop_position(site, case.message)
        assert position > last_position
        assert findings(site, capsys)["stop"] == ("fail", f"the service stopped at {position}: {case.message}")
        check_refusals(site, position, case)
        assert site.call("accept", position, "--as", decision)[0] == 0
        assert findings(site, capsys)["stop"][0] == "ok"
        last_position = position
    with site.running() as running:
        running.until(lambda: ("create", case.last_key) in site.ops("guest"))
        if case.repair:
            assert site.call("rebuild", "guest")[0] == 0
            running.until(lambda: sorted(map(str, site.state("guest").values())) == table(site))
    assert "stop" not in findings(site, capsys)
    assert "is past this position already" in site.refused("accept", last_position, "--as", "skip", code=2)
    if not case.repair:
        cause_ops = case.default_ops if decision == "default" and case.default_ops else ()
        assert site.ops("guest") == [*ops_before, *cause_ops, ("create", case.last_key)]
    assert len(site.ops("dead")) >= case.stops if decision == "dead-letter" else not site.ops("dead")


def stop_position(site: Site, message: str) -> str:
    """Starts the service twice. Returns the position at which it stops both times."""
    first, second = site.refused(), site.refused()
    assert first == second
    assert message in first
    [position] = set(re.findall(r"\w{8}/\w{16}/\w{8}", first))
    return str(position)


def check_refusals(site: Site, position: str, case: Case) -> None:
    """Checks that `accept` refuses decisions and positions that would have no effect."""
    for decision in set(ALL) - set(case.choices):
        line = site.refused("accept", position, "--as", decision, code=2)
        assert f"--as {decision} does not resolve this stop" in line
        assert f"`changelog accept {position} --as skip|dead-letter`" in line
    later_position = f"{position[:-8]}{int(position[-8:], 16) + 2:08x}"
    for other_position in (later_position, "00000001/0FFFFFFFFFFFFFFF/00000000"):
        line = site.refused("accept", other_position, "--as", "skip", code=2)
        assert "the service did not stop at this position" in line
        assert f"it stopped at {position}" in line
    assert "did not stop at a change of the columns" in site.refused("schemas", "accept", "guest", position, code=2)


def findings(site: Site, capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    """Returns the status and message of each finding of `check`, by name. If several findings have the same name, the
    last one counts.
    """
    capsys.readouterr()
    site.call("check", "--json")
    return {finding["name"]: (finding["status"], finding["message"]) for finding in json.loads(capsys.readouterr().out)}


def table(site: Site) -> list[str]:
    """Returns the rows of the table, sorted. The changelog should have the same rows."""
    return sorted(str(row) for (row,) in site.sql("SELECT to_json(guest) FROM guest"))


def test_accept_refuses_positions_at_which_the_service_did_not_stop(stopped_site: Site) -> None:
    stored_position = str(stopped_site.checkpoint.position)
    assert "is past this position already" in stopped_site.refused("accept", stored_position, "--as", "skip", code=2)
    future_position = "00000001/0FFFFFFFFFFFFFFF/00000000"
    for words in (("accept", future_position, "--as", "skip"), ("schemas", "accept", "guest", future_position)):
        refusal = stopped_site.refused(*words, code=2)
        assert "the service has not stopped at any change since it stored its last row" in refusal
    code, lines = stopped_site.call("accept", "soon", "--as", "skip")
    assert (code, len(lines)) == (2, 1)


def test_schemas_accept_gets_past_a_stop_at_changed_columns(
    stopped_site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped_site.sql("ALTER TABLE guest RENAME name TO nick", "INSERT INTO guest VALUES (2)")
    position = stop_position(stopped_site, "the columns of entity guest changed in a way that is not compatible")
    assert findings(stopped_site, capsys)["stop"][0] == "fail"
    line = stopped_site.refused("accept", position, "--as", "default", code=2)
    assert "--as default does not resolve this stop" in line
    assert f"`changelog schemas accept guest {position}`" in line
    assert stopped_site.call("schemas", "accept", "guest", position)[0] == 0
    assert findings(stopped_site, capsys)["stop"][0] == "ok"
    with stopped_site.running() as running:
        running.until(lambda: "2" in stopped_site.state("guest"))


LOSSES_OF_THE_KEY = {
    "nothing": ("ALTER TABLE guest REPLICA IDENTITY NOTHING", FULL),
    "dropped primary key": (
        "ALTER TABLE guest REPLICA IDENTITY DEFAULT; ALTER TABLE guest DROP CONSTRAINT guest_pkey",
        "ALTER TABLE guest ADD PRIMARY KEY (id)",
    ),
    "dropped index": (
        "CREATE UNIQUE INDEX i ON guest (id); ALTER TABLE guest REPLICA IDENTITY USING INDEX i; DROP INDEX i",
        FULL,
    ),
}
"""Statements after which the replica identity lacks the key, and statements that repair the identity."""


@pytest.mark.parametrize("name", LOSSES_OF_THE_KEY)
def test_inserts_are_published_even_if_the_log_had_no_keys_of_old_rows(stopped_site: Site, name: str) -> None:
    """While the replica identity of the table lacks the key, the server itself refuses updates and deletes."""
    loss, repair = LOSSES_OF_THE_KEY[name]
    stopped_site.sql(loss, "INSERT INTO guest SELECT n FROM generate_series(2, 50) AS n")
    for statement in ("UPDATE guest SET name = 'x'", "DELETE FROM guest"):
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            stopped_site.sql(statement)
    assert stopped_site.call("run")[0] != 0
    stopped_site.sql(repair, "UPDATE guest SET name = 'new' WHERE id < 40", "DELETE FROM guest WHERE id = 2")
    with stopped_site.running() as running:
        running.until(lambda: ("delete", "2") in stopped_site.ops("guest"))
        # This must be one transaction. The service may read the catalogue at any time, and would stop if the table
        # had no key at that time.
        stopped_site.sql(f"BEGIN; {loss}; INSERT INTO guest VALUES (60); {repair}; COMMIT")
        stopped_site.sql("UPDATE guest SET id = 61 WHERE id = 60")
        running.until(lambda: ("create", "61") in stopped_site.ops("guest"))
    assert sorted(map(str, stopped_site.state("guest").values())) == table(stopped_site)
