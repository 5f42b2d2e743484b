"""The properties with which a Debezium in process continues after a restart."""

from changelog.connectors.sources.debezium.inputs.engine.settings import TABLES, continued, defaults

MODE = "publication.autocreate.mode"


def test_the_publication_is_altered_only_for_other_tables() -> None:
    one, two = (defaults("postgresql", None, "shop", names) for names in ([("public", "a")], [("public", "b")]))
    assert continued(one, one[TABLES]) == {**one, MODE: "disabled"}
    assert continued(one, two[TABLES]) == one
    assert continued(one, None) == one


def test_other_modes_stay_as_they_are() -> None:
    own = {**defaults("postgresql", None, "shop", []), MODE: "all_tables"}
    assert continued(own, own[TABLES]) == own
    other = defaults("mysql", None, "shop", [("shop", "a")])
    assert continued(other, other[TABLES]) == other
