"""Tests what follows from the properties that the service passes to Debezium: who makes the publication in PostgreSQL,
and which snapshots have an id. If any property but a secret changes, so does the id,
because the snapshot may read other rows then.
"""

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
    assert "my_shop" not in repr(publication)  # the text must show no properties, because they have passwords


def test_by_default_the_service_makes_the_publication() -> None:
    publication = publication_of("postgresql", PROPERTIES, shared=False)
    assert publication is not None
    assert publication.is_ours
    assert publication.properties[NAME] == "my_shop"


@pytest.mark.parametrize(
    ("connector", "more"),
    [("mysql", {}), ("postgresql", {"plugin.name": "decoderbufs"}), ("postgresql", {MODE: "no_tables"})],
)
def test_other_connectors_and_settings_need_no_publication(connector: str, more: dict[str, str]) -> None:
    assert publication_of(connector, {**PROPERTIES, **more}, shared=False) is None


def test_only_some_snapshots_have_an_id() -> None:
    same = snapshot_id("postgresql", {**PROPERTIES, "database.password": "a"})
    assert same == snapshot_id("postgresql", {**PROPERTIES, "database.password": "b"}) != ""
    assert same != snapshot_id("postgresql", {**PROPERTIES, "snapshot.mode": "always"})
    assert snapshot_id("mysql", {"snapshot.max.threads": "4"}) == ""
    assert snapshot_id("sqlserver", {"database.names": "a"}) != ""
    assert snapshot_id("sqlserver", {"database.names": "a,b"}) == ""
    assert snapshot_id("vitess", {}) == ""
