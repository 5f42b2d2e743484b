"""Tests how the URL of a MySQL server is parsed. The error for a wrong URL must not show the password."""

import pytest

from changelog.connectors.sources.mysql.session.address import Address, Tls, TlsMode
from changelog.envelope.errors import ChangelogError, Kind


def test_a_url_names_the_server_the_user_and_the_database() -> None:
    address = Address.parse("mysql://us%65r:p%40ss@db.example:3307/shop")
    assert address == Address(host="db.example", port=3307, user="user", password="p@ss", database="shop")
    assert "p@ss" not in repr(address)


def test_port_password_and_tls_have_defaults() -> None:
    address = Address.parse("mariadb://user@db.example/shop")
    assert (address.port, address.password, address.tls) == (3306, "", Tls(mode=TlsMode.PREFERRED))


def test_parameters_choose_tls() -> None:
    address = Address.parse(
        "mysql://user@db.example/shop?ssl-mode=verify_ca&ssl-ca=/ca.pem&ssl-cert=c.pem&ssl-key=k.pem"
    )
    assert address.tls == Tls(mode=TlsMode.VERIFY_CA, ca="/ca.pem", cert="c.pem", key="k.pem")


@pytest.mark.parametrize(
    ("dsn", "problem"),
    [
        ("postgresql://user:secret@host/shop", "it does not begin with mysql://"),
        ("mysql://user:secret@host:port/shop", "it is not a URL"),
        ("mysql://:secret@host/shop", "it lacks the user or the host"),
        ("mysql://user:secret@host", "it lacks the database"),
        ("mysql://user:secret@host/", "it lacks the database"),
        ("mysql://user:secret@host/a/b", "it lacks the database"),
        ("mysql://user:secret@host/shop?ssl-mode=maybe", "ssl-mode should be one of DISABLED"),
        ("mysql://user:secret@host/shop?ssl-mode=VERIFY_CA", "ssl-mode VERIFY_CA needs ssl-ca"),
        ("mysql://user:secret@host/shop?timeout=3", "it has the unknown parameter timeout"),
    ],
)
def test_the_error_for_a_wrong_url_does_not_show_the_password(dsn: str, problem: str) -> None:
    with pytest.raises(ChangelogError) as caught:
        Address.parse(dsn)
    assert caught.value.kind is Kind.USAGE
    assert problem in caught.value.message
    assert "secret" not in str(caught.value)
