"""Tests which connection strings are refused. The errors must not show any part of a password."""

import pytest

from changelog.connectors import libpq
from changelog.connectors.sources.postgres.session.connection import connect
from changelog.envelope.errors import ChangelogError, Kind

REMEDIES = libpq.Remedies(dsn="[source] dsn", rejections=(), states=())


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://app:Geheim@Wort@127.0.0.1/app",
        "postgres://app:Geheim@Wort@127.0.0.1/app",
        "postgresql://app:Geheim@Wo/rt@127.0.0.1/app",
        "postgresql://app:Geheim/Wort@127.0.0.1/app",
        "postgresql://app:1234/Geheim@127.0.0.1/app",
        "postgresql://app:Geheim?Wort@x@127.0.0.1/app",
        "postgresql://app@127.0.0.1:Geheim/app",
        "host=app:Geheim@127.0.0.1 dbname=app",
        "host=a,b port=5432,Geheim",
        "host=Geheim..Wort",
        f"postgresql://app:Geheim@{'x' * 64}.example/app",
    ],
)
def test_a_wrong_connection_string_is_refused_and_not_shown(dsn: str) -> None:
    with pytest.raises(ChangelogError, match="is not a PostgreSQL connection string") as raised:
        connect(dsn)
    assert raised.value.kind is Kind.USAGE
    assert "Geheim" not in str(raised.value)
    assert "Wort" not in str(raised.value)


@pytest.mark.parametrize(
    ("dsn", "expected"),
    [
        ("postgresql://app:Geheim%40Wort@127.0.0.1/app", {"password": "Geheim@Wort", "host": "127.0.0.1"}),
        ("postgresql://app@%40socket/app", {"host": "@socket"}),
        ("postgresql:///app?host=@socket", {"host": "@socket"}),
        ("postgresql://app@%2Frun%2Fpg%401/app", {"host": "/run/pg@1"}),
        ("postgresql://app@h1:1,h2/a%40b", {"host": "h1,h2", "port": "1,", "dbname": "a@b"}),
        ("postgresql://app:p@[::1]:5432/app", {"host": "::1", "port": "5432"}),
        ("host=/run/pg@1,@socket,a port=1,,3 dbname=a@b password=a@b", {"dbname": "a@b", "password": "a@b"}),
        ("", {}),
    ],
)
def test_sockets_and_percent_encoded_characters_are_accepted(dsn: str, expected: dict[str, str]) -> None:
    parameters = libpq.parameters(dsn, REMEDIES)
    assert {name: parameters[name] for name in expected} == expected
