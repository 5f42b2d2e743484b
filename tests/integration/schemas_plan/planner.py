"""Runs `changelog schemas plan` with scripts that alter the three sample tables."""

import json
from typing import Any

import pytest

from tests.integration.site import Site

TABLES = (
    "CREATE TYPE status AS ENUM ('new', 'paid')",
    "CREATE TYPE money_of AS (amount numeric(10, 2), currency text)",
    """CREATE TABLE orders (id int PRIMARY KEY, guest_id int NOT NULL, nights int, amount numeric(10, 2), note text,
    status status, price money_of, made_at timestamp)""",
    "ALTER TABLE orders REPLICA IDENTITY FULL",
    "INSERT INTO orders VALUES (1, 7, 3, 10.5, 'a', 'new', '(1,EUR)', '2026-11-21 10:00:00.5')",
    "CREATE TABLE log (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)",
    "CREATE TABLE log_1 PARTITION OF log FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE guest (id bigserial PRIMARY KEY, name text)",
)
PUBLICATION = (
    "CREATE PUBLICATION {} FOR TABLE ONLY orders, ONLY log, ONLY guest WITH (publish_via_partition_root = true)"
)
CONFIG = '[tables]\ninclude = ["public.*"]\n[entities.orders]\nkey = ["id"]\n'


class Planner:
    """Runs `changelog schemas plan` with a script, and returns what the command reports."""

    def __init__(self, site: Site, capsys: pytest.CaptureFixture[str]) -> None:
        self._site, self._capsys = site, capsys
        self.file = site.folder / "migration.sql"

    def run(self, script: str, *options: str) -> tuple[int, str]:
        """Runs the command with this script. Returns the exit code and the output."""
        self.file.write_text(script.replace("PUBLICATION_NAME", self._site.name), "utf-8")
        self._capsys.readouterr()
        code, lines = self._site.call("schemas", "plan", str(self.file), *options)
        assert code in (0, 1), lines
        return code, self._capsys.readouterr().out

    def plan(self, script: str, *options: str) -> dict[str, Any]:
        """Returns the JSON output, after a check that the exit code matches the verdict."""
        code, text = self.run(script, "--json", *options)
        result: dict[str, Any] = json.loads(text)
        assert code == (result["verdict"] != "ok")
        return result

    def entity(self, script: str, *options: str, name: str = "orders") -> dict[str, Any]:
        """Returns the result for one entity, after a check that the script affects no other entity."""
        result = self.plan(script, *options)
        others = [entity for entity in result["entities"] if entity["entity"] != name]
        assert not any(entity["alterations"] or entity["troubles"] or entity["reads_again"] for entity in others)
        [plan] = [entity for entity in result["entities"] if entity["entity"] == name]
        assert isinstance(plan, dict)
        return plan

    def refused(self, script: str, *options: str, code: int = 3) -> str:
        """Returns the last line that the command prints when it fails, without the file name at its beginning."""
        self.file.write_text(script, "utf-8")
        return self.last_line(code, str(self.file), *options)

    def last_line(self, code: int, *words: str) -> str:
        """Returns the last line of `changelog schemas plan WORDS`, which must fail with this code."""
        exit_code, lines = self._site.call("schemas", "plan", *words)
        assert exit_code == code, lines
        assert self._capsys.readouterr().out == ""
        return lines[-1].strip().removeprefix("changelog: ").removeprefix(f"{self.file}:")


def alterations(entity: dict[str, Any]) -> list[str]:
    return [
        " ".join(
            filter(None, [f"{change['line']}:", change["kind"], change["name"], change["before"], change["after"]])
        )
        for change in entity["alterations"]
    ]


def rules(entity: dict[str, Any]) -> list[str]:
    return [f"{trouble['line']}: {trouble['rule']} {trouble['path']}" for trouble in entity["troubles"]]


def summary(entity: dict[str, Any]) -> tuple[list[str], list[str], list[str], int]:
    """Returns the alterations, the incompatibilities, the columns because of which the table is read again, and the
    number of changes of stored values that the service cannot see.

    Also checks that the service would stop if there is an incompatibility, and only then.
    """
    assert entity["stops"] == bool(entity["troubles"])
    return alterations(entity), rules(entity), entity["reads_again"], len(entity["unseen"])
