"""Tests JSON texts that PostgreSQL accepts and most parsers reject: an unpaired surrogate, and very deep nesting."""

import pytest

from changelog.connectors import cli
from changelog.connectors.sinks.files.log import read_log
from tests.integration.site import Site

DEEP = "(repeat('[', 2000) || repeat(']', 2000))::json"
UNPAIRED = """'"\\ud800"'"""


@pytest.fixture
def site_with_strange_json(site: Site) -> Site:
    """A service that has published rows with such JSON. Two of them were read from the table. A third one was created,
    updated and deleted.
    """
    site.sql(
        "CREATE TABLE doc (id int PRIMARY KEY, value json, other json)",
        "ALTER TABLE doc REPLICA IDENTITY FULL",
        f"INSERT INTO doc VALUES (1, {UNPAIRED}, {DEEP}), (2, {DEEP}, {UNPAIRED})",
    )
    site.configure('[entities.doc]\ntable = "public.doc"\n')
    with site.running() as running:
        running.until(site.is_read)
        site.sql(
            f"INSERT INTO doc VALUES (3, {UNPAIRED}, {DEEP})",
            f"UPDATE doc SET value = {DEEP} WHERE id = 3",
            "DELETE FROM doc WHERE id = 3",
        )
        running.until(lambda: ("delete", "3") in ops(site))
    return site


def ops(site: Site) -> list[tuple[str, str]]:
    """Returns the operation and key of each change. Does not decode the rows, because a strict decoder rejects them."""
    return [
        (op, key)
        for rows in read_log(site.log, entity="doc")
        for op, key in zip(rows.column("op").to_pylist(), rows.column("key").to_pylist(), strict=True)
    ]


@pytest.mark.parametrize("words", [("tail", "--no-follow"), ("history", "doc", "3")])
def test_deep_nesting_and_unpaired_surrogates_are_shown(
    site_with_strange_json: Site, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    for options in ((), ("--json",)):
        capsys.readouterr()
        assert cli.main([words[0], "--config", str(site_with_strange_json.config), *words[1:], *options]) == 0
        output = capsys.readouterr()
        assert output.err == ""
        assert "\\ud800" in output.out
        assert "[" * 60 in "".join(output.out.split())  # a narrow terminal wraps the lines
        if not options:
            assert "deleted" in output.out


def test_a_rebuild_deletes_a_deeply_nested_row_that_the_table_lacks(site_with_strange_json: Site) -> None:
    site_with_strange_json.sql(
        f"ALTER PUBLICATION {site_with_strange_json.name} DROP TABLE doc", "DELETE FROM doc WHERE id = 2"
    )
    site_with_strange_json.sql(f"ALTER PUBLICATION {site_with_strange_json.name} ADD TABLE doc")
    with site_with_strange_json.running() as running:
        running.until(lambda: running.said("streaming"))
        assert site_with_strange_json.call("rebuild", "doc")[0] == 0
        running.until(lambda: ("delete", "2") in ops(site_with_strange_json))
