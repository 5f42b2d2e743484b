"""Tests what `changelog schemas plan` reports for scripts that change columns."""

import pytest

from tests.integration.schemas_plan.planner import CONFIG, Planner, alterations, rules, summary
from tests.integration.site import Site

COLUMNS: dict[str, tuple[str, list[str], list[str], list[str], int]] = {
    "added": ("ALTER TABLE orders ADD extra text", ["1: column added extra text"], [], [], 0),
    "added not null with a default": (
        "ALTER TABLE orders\n  ADD extra int NOT NULL DEFAULT 5",
        ["1: column added extra integer NOT NULL DEFAULT 5"],
        [],
        ["extra"],
        0,
    ),
    "added with a default that is dropped again": (
        "ALTER TABLE orders ADD extra int DEFAULT 5;\nALTER TABLE orders ALTER extra DROP DEFAULT;",
        ["1: column added extra integer"],
        [],
        ["extra"],
        0,
    ),
    "added with a volatile default": (
        "ALTER TABLE orders ADD extra uuid DEFAULT gen_random_uuid()",
        ["1: column added extra uuid DEFAULT gen_random_uuid()", "1: table rewritten"],
        [],
        ["extra"],
        0,
    ),
    "dropped": ("-- why\nALTER TABLE orders DROP note", ["2: column dropped note text"], [], [], 0),
    "renamed": (
        "ALTER TABLE orders RENAME note TO remark",
        ["1: column renamed remark note remark"],
        ["1: FIELD_RENAMED /fields/remark"],
        ["remark"],
        0,
    ),
    "wider": (
        "ALTER TABLE orders ALTER nights TYPE bigint",
        ["1: type nights integer bigint", "1: table rewritten"],
        ["1: BRANCH_MISSING /fields/nights"],
        [],
        0,
    ),
    "computed again": (
        "ALTER TABLE orders ALTER nights TYPE int USING nights + 1",
        ["1: table rewritten"],
        [],
        [],
        1,
    ),
    "rounded, without a visible change of type": (
        "ALTER TABLE orders ALTER made_at TYPE timestamp(0)",
        ["1: type made_at timestamp without time zone timestamp(0) without time zone", "1: table rewritten"],
        [],
        [],
        1,
    ),
    "another type with the same text": (
        "ALTER TABLE orders ALTER note TYPE varchar",
        ["1: type note text character varying"],
        [],
        [],
        0,
    ),
    "not null, and a default for new rows": (
        "ALTER TABLE orders ALTER note SET NOT NULL;\nALTER TABLE orders ALTER nights SET DEFAULT 3",
        ["1: null note NULL NOT NULL", "2: default nights none 3"],
        [],
        [],
        0,
    ),
    "added and dropped": ("ALTER TABLE orders ADD extra int; ALTER TABLE orders DROP extra", [], [], [], 0),
    "a new label": ("ALTER TYPE status ADD VALUE 'gone'", [], [], [], 0),
    "inside a composite": (
        "SELECT 1;\nALTER TYPE money_of ADD ATTRIBUTE at date",
        ["2: type price its type altered"],
        [],
        ["price"],
        0,
    ),
    "only data": ("UPDATE orders SET nights = 2; INSERT INTO orders (id, guest_id) VALUES (2, 2)", [], [], [], 0),
}
"""Scripts, each with the `summary` that its plan must have for the entity `orders`."""


@pytest.mark.parametrize("case", COLUMNS)
def test_the_plan_shows_what_a_script_does_to_columns(planner: Planner, case: str) -> None:
    script, *expected = COLUMNS[case]
    assert list(summary(planner.entity(script))) == expected


def test_a_change_to_an_incompatible_type_breaks_new_readers(planner: Planner) -> None:
    plan = planner.entity("SELECT 1;\n\nALTER TABLE orders ALTER amount TYPE text;")
    assert alterations(plan) == ["3: type amount numeric(10,2) text", "3: table rewritten"]
    assert {rule.partition(" /")[0] for rule in rules(plan)} == {"3: LOGICAL_TYPE", "3: PROMOTION_LOSSY"}
    assert {trouble["breaks"] for trouble in plan["troubles"]} == {"new readers"}
    assert plan["reads_again"] == ["amount"]


def test_a_column_that_is_not_published_is_ignored(site: Site, planner: Planner) -> None:
    site.configure(CONFIG + 'exclude_columns = ["note"]\n')
    plan = planner.entity("ALTER TABLE orders ALTER note TYPE bytea USING note::bytea")
    assert (rules(plan), plan["reads_again"], plan["unseen"]) == ([], [], [])
