"""Three tables, and what plans scripts for them."""

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
    """Tries scripts, and gives what is said of them."""

    def __init__(self, site: Site, capsys: pytest.CaptureFixture[str]) -> None:
        self._site, self._capsys = site, capsys
        self.file = site.folder / "migration.sql"

    def said(self, script: str, *options: str) -> tuple[int, str]:
        """The exit code, and what was printed."""
        self.file.write_text(script.replace("PUBLICATION_NAME", self._site.name), "utf-8")
        self._capsys.readouterr()
        code, lines = self._site.call("schemas", "plan", str(self.file), *options)
        assert code in (0, 1), lines
        return code, self._capsys.readouterr().out

    def tried(self, script: str, *options: str) -> dict[str, Any]:
        """All that is said of it; the exit code fits the verdict."""
        code, text = self.said(script, "--json", *options)
        found: dict[str, Any] = json.loads(text)
        assert code == (found["verdict"] != "ok")
        return found

    def entity(self, script: str, *options: str, name: str = "orders") -> dict[str, Any]:
        """What is said of one entity; nothing happens to the others."""
        tried = self.tried(script, *options)
        others = [each for each in tried["entities"] if each["entity"] != name]
        assert not any(each["alterations"] or each["troubles"] or each["reads_again"] for each in others)
        [found] = [each for each in tried["entities"] if each["entity"] == name]
        assert isinstance(found, dict)
        return found

    def refused(self, script: str, *options: str, code: int = 3) -> str:
        """The last line with which it fails, without the file's name before the line's number."""
        self.file.write_text(script, "utf-8")
        return self.last_line(code, str(self.file), *options)

    def last_line(self, code: int, *words: str) -> str:
        """Of `changelog schemas plan WORDS`, which fails with this code."""
        found, lines = self._site.call("schemas", "plan", *words)
        assert found == code, lines
        assert self._capsys.readouterr().out == ""
        return lines[-1].strip().removeprefix("changelog: ").removeprefix(f"{self.file}:")


def alterations(entity: dict[str, Any]) -> list[str]:
    return [
        " ".join(filter(None, [f"{each['line']}:", each["kind"], each["name"], each["before"], each["after"]]))
        for each in entity["alterations"]
    ]


def rules(entity: dict[str, Any]) -> list[str]:
    return [f"{each['line']}: {each['rule']} {each['path']}" for each in entity["troubles"]]


def summary(entity: dict[str, Any]) -> tuple[list[str], list[str], list[str], int]:
    """What changes, what breaks, what is read again, and how much happens unseen; a trouble stops the service here."""
    assert entity["stops"] == bool(entity["troubles"])
    return alterations(entity), rules(entity), entity["reads_again"], len(entity["unseen"])
