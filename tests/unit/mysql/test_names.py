"""Tests how names are quoted for SQL."""

from changelog.connectors.sources.mysql.session.names import quoted, quoted_account


def test_names_are_quoted() -> None:
    assert quoted("my db", "t`") == "`my db`.`t```"


def test_the_name_of_an_account_is_quoted() -> None:
    assert quoted_account("o'hara@home@%") == "'o''hara@home'@'%'"
