"""With which properties Debezium runs in process, and whose PostgreSQL's publication is."""

import pytest

from changelog.connectors.sources.debezium.inputs.engine.publication import NAME, publication_of
from changelog.connectors.sources.debezium.inputs.engine.settings import MODE, defaults, snapshot_id

PROPERTIES = defaults("postgresql", None, "my-shop", [("public", "a")])


@pytest.mark.parametrize(
    ("mode", "is_ours"), [("filtered", True), ("ALL_TABLES", True), ("disabled", False), ("Filtered", True)]
)
def test_the_service_makes_the_publication_that_debezium_would_make(mode: str, is_ours: bool) -> None:
    publication = publication_of("postgresql", {**PROPERTIES, MODE: mode}, shared=False)
    assert publication is not None
    assert (publication.name, publication.is_ours) == ("my_shop", is_ours)
    assert "my_shop" not in repr(publication)  # properties have passwords


def test_by_default_the_service_makes_it() -> None:
    publication = publication_of("postgresql", PROPERTIES, shared=False)
    assert publication is not None
    assert publication.is_ours
    assert publication.properties[NAME] == "my_shop"


@pytest.mark.parametrize(
    ("connector", "more"),
    [("mysql", {}), ("postgresql", {"plugin.name": "decoderbufs"}), ("postgresql", {MODE: "no_tables"})],
)
def test_others_have_no_publication_to_look_at(connector: str, more: dict[str, str]) -> None:
    assert publication_of(connector, {**PROPERTIES, **more}, shared=False) is None


def test_which_snapshots_have_a_known_end() -> None:
    same = snapshot_id("postgresql", {**PROPERTIES, "database.password": "a"})
    assert same == snapshot_id("postgresql", {**PROPERTIES, "database.password": "b"}) != ""
    assert same != snapshot_id("postgresql", {**PROPERTIES, "snapshot.mode": "always"})
    assert snapshot_id("mysql", {"snapshot.max.threads": "4"}) == ""
    assert snapshot_id("sqlserver", {"database.names": "a"}) != ""
    assert snapshot_id("sqlserver", {"database.names": "a,b"}) == ""
    assert snapshot_id("vitess", {}) == ""
