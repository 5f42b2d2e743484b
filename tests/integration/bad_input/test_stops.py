"""Every stop that the log itself causes: each start says the same, `check` says it, and an operator passes it."""

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
    """While the service is away, each of the `stops` last statements of `cause` makes it stop, and `mended` sets its
    table right. `default` is what the service publishes of the cause, if it is a choice; `last` is the key of a row
    that is written after it.
    """

    message: str
    cause: tuple[str, ...]
    stops: int = 1
    settings: str = ""
    table: tuple[str, ...] = ()
    mended: tuple[str, ...] = ()
    default: tuple[tuple[str, str], ...] | None = None
    last: str = "3"

    @property
    def choices(self) -> tuple[str, ...]:
        """What `changelog accept` takes."""
        return OTHERS if self.default is None else ALL


CASES = {
    "truncate": Case(
        message="public.guest was truncated", cause=("TRUNCATE guest",), default=(("truncate", TRUNCATE_KEY),)
    ),
    "immutable": Case(
        message="a row of public.guest was changed, and entity guest is immutable",
        cause=("UPDATE guest SET name = 'x'",),
        settings="immutable = true",
    ),
    "unstamped": Case(
        message="a change of public.guest has no provenance stamp",
        cause=("INSERT INTO guest VALUES (2)",),
        settings="[provenance]\nmissing = 'stop'",
        default=(("create", "2"),),
    ),
    "key column gone": Case(
        message="entity guest: key column id is no longer in public.guest",
        cause=("ALTER TABLE guest DROP id", "INSERT INTO guest VALUES ('Bo')", "DELETE FROM guest"),
        stops=2,
        mended=("ALTER TABLE guest ADD id int PRIMARY KEY",),
    ),
    "null in the key": Case(
        message="the log holds no value for key or partition column email of public.guest",
        table=EMAIL,
        cause=(
            "ALTER TABLE guest ALTER email DROP NOT NULL",
            "INSERT INTO guest VALUES (2)",
            "UPDATE guest SET email = 'bo@example.org' WHERE id = 2",
        ),
        stops=2,
        settings='key = ["email"]',
        mended=("ALTER TABLE guest ALTER email SET NOT NULL",),
        last="cy@example.org",
    ),
    "identity without the key": Case(
        message="the log holds no value for key or partition column id of public.guest",
        table=EMAIL,
        cause=(
            "ALTER TABLE guest REPLICA IDENTITY USING INDEX guest_email",
            "UPDATE guest SET name = 'x'",
            "UPDATE guest SET email = 'y'",
            "DELETE FROM guest",
        ),
        stops=3,
        mended=(FULL,),
    ),
}

ABSENT = "00000001/0000000000000001/00000000"


@pytest.mark.parametrize(
    ("name", "decision"), [(name, decision) for name, case in CASES.items() for decision in case.choices]
)
def test_a_stop_is_told_and_passed(site: Site, name: str, decision: str, capsys: pytest.CaptureFixture[str]) -> None:
    case = CASES[name]
    site.sql("SELECT", *case.table)
    site.configure(ONE + case.settings)
    with site.running() as running:
        running.until(site.is_read)
    before = site.ops("guest")
    site.sql(*case.cause, *case.mended, STAMPED)
    last = ""
    for _ in range(case.stops):
        position = stopped(site, case.message)
        assert position > last
        assert findings(site, capsys)["stop"] == ("fail", f"the service stopped at {position}: {case.message}")
        refuses(site, position, case)
        assert site.call("accept", position, "--as", decision)[0] == 0
        assert findings(site, capsys)["stop"][0] == "ok"
        last = position
    with site.running() as running:
        running.until(lambda: ("create", case.last) in site.ops("guest"))
        if case.mended:
            assert site.call("rebuild", "guest")[0] == 0
            running.until(lambda: sorted(map(str, site.state("guest").values())) == table(site))
    assert "stop" not in findings(site, capsys)
    assert "is past this position already" in site.refused("accept", last, "--as", "skip", code=2)
    if not case.mended:
        published = case.default if decision == "default" and case.default else ()
        assert site.ops("guest") == [*before, *published, ("create", case.last)]
    assert len(site.ops("dead")) >= case.stops if decision == "dead-letter" else not site.ops("dead")


def stopped(site: Site, what: str) -> str:
    """The position at which the service stops, now and when it is started again."""
    first, second = site.refused(), site.refused()
    assert first == second
    assert what in first
    [position] = set(re.findall(r"\w{8}/\w{16}/\w{8}", first))
    return str(position)


def refuses(site: Site, position: str, case: Case) -> None:
    """What would change nothing is no success."""
    for decision in set(ALL) - set(case.choices):
        line = site.refused("accept", position, "--as", decision, code=2)
        assert f"{decision} does not pass this stop" in line
        assert f"`changelog accept {position} --as skip|dead-letter`" in line
    behind = f"{position[:-8]}{int(position[-8:], 16) + 2:08x}"
    for elsewhere in (behind, "00000001/0FFFFFFFFFFFFFFF/00000000"):
        line = site.refused("accept", elsewhere, "--as", "skip", code=2)
        assert "the service did not stop at this position" in line
        assert f"it stopped at {position}" in line
    assert "did not stop at a change of the columns" in site.refused("schemas", "accept", "guest", position, code=2)


def findings(site: Site, capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    """What `check` says, by name: the last of each."""
    capsys.readouterr()
    site.call("check", "--json")
    return {each["name"]: (each["status"], each["message"]) for each in json.loads(capsys.readouterr().out)}


def table(site: Site) -> list[str]:
    """The rows that the changelog should have, in some order."""
    return sorted(str(row) for (row,) in site.sql("SELECT to_json(guest) FROM guest"))


def test_nothing_is_accepted_where_the_service_did_not_stop(begun: Site) -> None:
    at = str(begun.checkpoint.position)
    assert "is past this position already" in begun.refused("accept", at, "--as", "skip", code=2)
    ahead = "00000001/0FFFFFFFFFFFFFFF/00000000"
    for words in (("accept", ahead, "--as", "skip"), ("schemas", "accept", "guest", ahead)):
        assert "the service has not stopped at any change since its last row" in begun.refused(*words, code=2)
    code, lines = begun.call("accept", "soon", "--as", "skip")
    assert (code, len(lines)) == (2, 1)


def test_columns_that_changed_are_passed_by_another_command(begun: Site, capsys: pytest.CaptureFixture[str]) -> None:
    begun.sql("ALTER TABLE guest RENAME name TO nick", "INSERT INTO guest VALUES (2)")
    position = stopped(begun, "the columns of entity guest changed in a way that is not compatible")
    assert findings(begun, capsys)["stop"][0] == "fail"
    line = begun.refused("accept", position, "--as", "default", code=2)
    assert "default does not pass this stop" in line
    assert f"`changelog schemas accept guest {position}`" in line
    assert begun.call("schemas", "accept", "guest", position)[0] == 0
    assert findings(begun, capsys)["stop"][0] == "ok"
    with begun.running() as running:
        running.until(lambda: "2" in begun.state("guest"))


UNLOGGED = {
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


@pytest.mark.parametrize("name", UNLOGGED)
def test_inserts_are_published_that_were_written_while_the_log_had_no_keys_of_old_rows(begun: Site, name: str) -> None:
    """The server itself refuses updates and deletes then."""
    spoiled, mended = UNLOGGED[name]
    begun.sql(spoiled, "INSERT INTO guest SELECT n FROM generate_series(2, 50) AS n")
    for statement in ("UPDATE guest SET name = 'x'", "DELETE FROM guest"):
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            begun.sql(statement)
    assert begun.call("run")[0] != 0
    begun.sql(mended, "UPDATE guest SET name = 'new' WHERE id < 40", "DELETE FROM guest WHERE id = 2")
    with begun.running() as running:
        running.until(lambda: ("delete", "2") in begun.ops("guest"))
        # At once: the service looks at the catalogue, and may open again, whenever it has a reason; a key that is not
        # there then stops it, rightly.
        begun.sql(f"BEGIN; {spoiled}; INSERT INTO guest VALUES (60); {mended}; COMMIT")
        begun.sql("UPDATE guest SET id = 61 WHERE id = 60")
        running.until(lambda: ("create", "61") in begun.ops("guest"))
    assert sorted(map(str, begun.state("guest").values())) == table(begun)
