"""Text that PostgreSQL takes for json and hardly anybody else does: half a character, and any depth."""

import pytest

from changelog.connectors import cli
from changelog.connectors.sinks.files.log import read_log
from tests.integration.site import Site

DEEP = "(repeat('[', 2000) || repeat(']', 2000))::json"
HALF = """'"\\ud800"'"""


@pytest.fixture
def strange(site: Site) -> Site:
    """A changelog with such values, as they were created, changed and deleted."""
    site.sql(
        "CREATE TABLE doc (id int PRIMARY KEY, value json, other json)",
        "ALTER TABLE doc REPLICA IDENTITY FULL",
        f"INSERT INTO doc VALUES (1, {HALF}, {DEEP}), (2, {DEEP}, {HALF})",
    )
    site.configure('[entities.doc]\ntable = "public.doc"\n')
    with site.running() as running:
        running.until(site.is_read)
        site.sql(
            f"INSERT INTO doc VALUES (3, {HALF}, {DEEP})",
            f"UPDATE doc SET value = {DEEP} WHERE id = 3",
            "DELETE FROM doc WHERE id = 3",
        )
        running.until(lambda: ("delete", "3") in ops(site))
    return site


def ops(site: Site) -> list[tuple[str, str]]:
    """Kind and key of each change, without a look at its states, which no strict decoder takes."""
    return [
        (op, key)
        for rows in read_log(site.log, entity="doc")
        for op, key in zip(rows.column("op").to_pylist(), rows.column("key").to_pylist(), strict=True)
    ]


@pytest.mark.parametrize("words", [("tail", "--no-follow"), ("history", "doc", "3")])
def test_what_nests_deep_or_holds_half_a_character_is_shown(
    strange: Site, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    for more in ((), ("--json",)):
        capsys.readouterr()
        assert cli.main([words[0], "--config", str(strange.config), *words[1:], *more]) == 0
        said = capsys.readouterr()
        assert said.err == ""
        assert "\\ud800" in said.out
        assert "[" * 60 in "".join(said.out.split())  # a narrow terminal wraps it
        if not more:
            assert "deleted" in said.out


def test_a_row_that_nests_deep_and_is_gone_is_deleted_by_a_rebuild(strange: Site) -> None:
    strange.sql(f"ALTER PUBLICATION {strange.name} DROP TABLE doc", "DELETE FROM doc WHERE id = 2")
    strange.sql(f"ALTER PUBLICATION {strange.name} ADD TABLE doc")
    with strange.running() as running:
        running.until(lambda: running.said("streaming"))
        assert strange.call("rebuild", "doc")[0] == 0
        running.until(lambda: ("delete", "2") in ops(strange))
