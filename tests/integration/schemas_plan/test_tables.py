"""Tests what `changelog schemas plan` reports for scripts that change keys, replica identities and whole tables.

One test also runs the planned scripts, and the service must then do what the plan says.
"""

import json

import pytest

from tests.integration.schemas_plan.planner import CONFIG, Planner, alterations, rules, summary
from tests.integration.site import Site

TABLE_CASES: dict[str, tuple[str, list[str], str]] = {
    "key dropped": ("ALTER TABLE orders DROP id", ["1: ENTITY /"], "has no column id"),
    "key renamed": ("ALTER TABLE orders RENAME id TO order_id", ["1: ENTITY /"], "has no column id"),
    "key without its index": (
        "SELECT 1;\nALTER TABLE orders DROP CONSTRAINT orders_pkey",
        ["2: ENTITY /"],
        "has no unique index on (id)",
    ),
    "dropped": ("\nDROP TABLE orders", ["2: TABLE_DROPPED /"], "public.orders is dropped"),
    "unlogged": ("ALTER TABLE orders SET UNLOGGED", ["1: TABLE /"], "is unlogged"),
    "not published": (
        "ALTER PUBLICATION PUBLICATION_NAME DROP TABLE orders",
        ["1: PUBLICATION /"],
        "lacks table public.orders",
    ),
    "truncated": ("\nTRUNCATE orders", ["2: TRUNCATE /"], "not published"),
}


@pytest.mark.parametrize("case", TABLE_CASES)
def test_changes_of_a_table_that_stop_the_service(planner: Planner, case: str) -> None:
    script, expected, text = TABLE_CASES[case]
    if case == "unlogged":
        # The server refuses SET UNLOGGED while the table is in a publication.
        script = "ALTER PUBLICATION PUBLICATION_NAME DROP TABLE orders;" + script
        expected = ["1: PUBLICATION /", *expected]
    plan = planner.entity(script)
    assert rules(plan) == expected
    assert text in plan["troubles"][-1]["text"]
    assert {trouble["breaks"] for trouble in plan["troubles"]} == {"the service"}
    assert plan["stops"]


def test_a_key_taken_from_the_primary_key_may_not_change(planner: Planner) -> None:
    script = "ALTER TABLE guest RENAME id TO guest_id"
    plan = planner.entity(script, name="guest")
    assert {"1: KEY_CHANGED /", "1: PARTITION_CHANGED /"} <= set(rules(plan))
    assert plan["stops"]


def test_a_renamed_table_becomes_a_new_entity(planner: Planner) -> None:
    result = planner.plan("ALTER TABLE orders\nRENAME TO bookings;")
    by_name = {entity["entity"]: entity for entity in result["entities"]}
    assert rules(by_name["orders"]) == ["1: TABLE_RENAMED /"]
    assert by_name["bookings"]["is_new"]


def test_a_table_that_replaces_another_is_read_again_if_it_is_published(site: Site, planner: Planner) -> None:
    swap = "CREATE TABLE next (LIKE orders INCLUDING ALL);\nDROP TABLE orders;\nALTER TABLE next RENAME TO orders;\n"
    plan = planner.entity(swap + "ALTER TABLE orders REPLICA IDENTITY FULL;")
    assert alterations(plan) == ["2: table dropped public.orders", "3: table replaced public.orders"]
    assert rules(plan) == ["2: PUBLICATION /"]
    plan = planner.entity(
        swap + "ALTER TABLE orders REPLICA IDENTITY FULL; ALTER TABLE orders DROP note;\n"
        "ALTER PUBLICATION PUBLICATION_NAME ADD TABLE ONLY orders;"
    )
    assert rules(plan) == []
    assert alterations(plan)[-1] == "3: column dropped note string"
    assert plan["reads_again"] == ["id", "guest_id", "nights", "amount", "status", "price", "made_at"]


def test_a_replica_identity_must_contain_the_key(planner: Planner) -> None:
    plan = planner.entity("ALTER TABLE orders REPLICA IDENTITY DEFAULT")
    assert summary(plan) == (["1: replica identity FULL DEFAULT (id)"], [], [], 0)
    [note] = plan["notes"]
    assert "`original` is unknown" in note
    plan = planner.entity("ALTER TABLE orders REPLICA IDENTITY NOTHING")
    assert rules(plan) == ["1: TABLE /"]
    assert "lacks id" in plan["troubles"][0]["text"]


def test_a_publication_that_sends_less_affects_every_entity(planner: Planner) -> None:
    result = planner.plan("SELECT 1;\nALTER PUBLICATION PUBLICATION_NAME SET (publish = 'insert')")
    assert [rules(entity) for entity in result["entities"]] == [["2: PUBLICATION /"]] * 3


def test_a_truncate_that_is_published_does_not_stop_the_service(site: Site, planner: Planner) -> None:
    site.configure(CONFIG + 'on_truncate = "publish"\n')
    plan = planner.entity("TRUNCATE orders")
    assert summary(plan) == (["1: table truncated"], [], [], 0)


def test_partitions_add_and_remove_rows_without_messages(site: Site, planner: Planner) -> None:
    site.sql("CREATE TABLE filled (LIKE log INCLUDING ALL)")
    site.configure(CONFIG + '[entities.filled]\ntable = "public.filled"\n')
    site.sql(f"ALTER PUBLICATION {site.name} ADD TABLE ONLY filled")
    result = planner.plan(
        "CREATE TABLE log_2 PARTITION OF log FOR VALUES FROM (10) TO (20);\n"
        "ALTER TABLE log ATTACH PARTITION filled FOR VALUES FROM (20) TO (30);\nDROP TABLE log_1;"
    )
    [log] = [entity for entity in result["entities"] if entity["entity"] == "log"]
    assert alterations(log) == [
        "1: partition added public.log_2",
        "2: partition added public.filled",
        "3: partition removed public.log_1",
    ]
    assert log["unseen"] == [
        "the rows of partition public.filled join the table",
        "the rows of partition public.log_1 leave the table",
    ]


def test_new_tables_that_the_configuration_includes_become_entities(planner: Planner) -> None:
    result = planner.plan(
        "CREATE TABLE added (id int PRIMARY KEY);\nCREATE TABLE keyless (id int);\nCREATE SCHEMA other;"
        "CREATE TABLE other.left_out (id int)"
    )
    new = {entity["entity"]: entity for entity in result["entities"] if entity["is_new"]}
    assert new.keys() == {"added", "keyless"}
    assert rules(new["added"]) == ["1: PUBLICATION /"]
    assert rules(new["keyless"]) == ["2: ENTITY /"]


def test_the_mode_comes_from_the_configuration_or_from_the_schema_file(site: Site, planner: Planner) -> None:
    wider = "ALTER TABLE orders ALTER nights TYPE bigint"
    site.configure('schemas = { compatibility = "BACKWARD_TRANSITIVE" }\n' + CONFIG)
    assert summary(planner.entity(wider))[1] == []
    assert site.call("schemas", "generate", "--out", str(site.folder / "schemas"))[0] == 0
    file = site.folder / "schemas" / "orders.avsc"
    file.write_text(json.dumps({**json.loads(file.read_text()), "compatibility": "FULL"}))
    plan = planner.entity(wider)
    assert rules(plan) == ["1: BRANCH_MISSING /fields/nights"]
    assert not plan["stops"]
    assert planner.run(wider)[1].endswith("rolled back: readers would break (orders)\n")


def test_publishing_an_incompatible_change_breaks_readers(site: Site, planner: Planner) -> None:
    site.configure('schemas = { on_incompatible = "publish", on_restated = "ask" }\n' + CONFIG)
    plan = planner.entity("ALTER TABLE orders RENAME note TO remark")
    assert (rules(plan), plan["stops"], plan["asks"]) == (["1: FIELD_RENAMED /fields/remark"], False, True)
    assert planner.entity("ALTER TABLE guest RENAME id TO guest_id", name="guest")["stops"]


def test_the_script_is_compared_with_every_version_in_the_changelog(site: Site, planner: Planner) -> None:
    with site.running() as service:
        service.until(lambda: site.state("orders").keys() == {"1"})
        site.sql("ALTER TABLE orders DROP note", "UPDATE orders SET nights = 4")
        service.until(lambda: len(site.messages("schemas")) == 2)
    plan = planner.entity("ALTER TABLE orders ADD note int")
    assert {(trouble["path"], trouble["against"]) for trouble in plan["troubles"]} == {("/fields/note", "version 1")}
    assert plan["stops"]


SCRIPTS_TO_RUN = [
    "ALTER TABLE orders ADD extra text",
    "ALTER TABLE orders ADD extra text DEFAULT 'x', DROP note",
    "ALTER TABLE orders RENAME note TO remark",
    "ALTER TABLE orders ALTER nights TYPE bigint",
    "ALTER TABLE orders ALTER note TYPE varchar",
    "ALTER TABLE orders RENAME id TO order_id",
    "ALTER TABLE orders DROP note; ALTER TABLE orders ADD note int",
]


@pytest.mark.parametrize("script", SCRIPTS_TO_RUN)
def test_the_service_does_as_planned(site: Site, planner: Planner, script: str) -> None:
    with site.running() as service:
        service.until(lambda: site.state("orders").keys() == {"1"})
        plan = planner.entity(script)
        site.sql(script, "INSERT INTO orders VALUES (2, 7, 3)")
        if plan["stops"]:
            service.ended()
            return
        service.until(lambda: "2" in site.state("orders"))
        versions = [message["value"]["current"] for message in site.messages("schemas") if message["key"] == "orders"]
        assert versions[-1]["restated"] == plan["reads_again"]
