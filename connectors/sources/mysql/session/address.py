"""Parses a URL with a server's address and the account to use: `mysql://USER:PASSWORD@HOST:3306/DATABASE`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from changelog.envelope.errors import ChangelogError, Kind

SCHEMES = ("mysql", "mariadb")
DEFAULT_PORT = 3306

_FORM = "mysql://USER:PASSWORD@HOST:3306/DATABASE"


class TlsMode(StrEnum):
    """Whether connections use TLS, in the words of MySQL's own clients (`--ssl-mode`)."""

    DISABLED = "DISABLED"
    PREFERRED = "PREFERRED"  # TLS, if the server offers it
    REQUIRED = "REQUIRED"
    VERIFY_CA = "VERIFY_CA"  # TLS, and the server's certificate must be signed by `ca`
    VERIFY_IDENTITY = "VERIFY_IDENTITY"  # the same, and the certificate must name the host


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """How connections are encrypted. `ca`, `cert` and `key` are the paths of PEM files; empty if there are none."""

    mode: TlsMode = TlsMode.PREFERRED
    ca: str = ""
    cert: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A server, an account on it, and the default database, to which table names without a database refer."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    tls: Tls = Tls()

    @classmethod
    def parse(cls, dsn: str) -> "Address":
        """Parses a URL. Its parameters are `ssl-mode`, `ssl-ca`, `ssl-cert` and `ssl-key`, as in MySQL's own clients.

        Raises ChangelogError (USAGE). The message does not repeat the URL, because a URL may hold a password.
        """
        try:
            url = urlsplit(dsn)
            port = url.port or DEFAULT_PORT
        except ValueError:
            raise _usage("it is not a URL") from None
        database = unquote(url.path.lstrip("/"))
        if url.scheme not in SCHEMES:
            raise _usage("it does not begin with mysql://")
        if not url.hostname or not url.username:
            raise _usage("it lacks the user or the host")
        if not database or "/" in database:
            raise _usage("it lacks the database")
        return cls(
            host=url.hostname,
            port=port,
            user=unquote(url.username),
            password=unquote(url.password or ""),
            database=database,
            tls=_tls(url),
        )


def _tls(url: SplitResult) -> Tls:
    parameters = dict(parse_qsl(url.query, keep_blank_values=True))
    tls = Tls(
        mode=_mode(parameters.pop("ssl-mode", TlsMode.PREFERRED), list(TlsMode)),
        ca=parameters.pop("ssl-ca", ""),
        cert=parameters.pop("ssl-cert", ""),
        key=parameters.pop("ssl-key", ""),
    )
    _refuse_unknown(parameters)
    if tls.mode in (TlsMode.VERIFY_CA, TlsMode.VERIFY_IDENTITY) and not tls.ca:
        raise _usage(f"ssl-mode {tls.mode} needs ssl-ca")
    return tls


def _mode(text: str, modes: Sequence[TlsMode]) -> TlsMode:
    try:
        return TlsMode(text.upper())
    except ValueError:
        raise _usage(f"ssl-mode should be one of {', '.join(modes)}") from None


def _refuse_unknown(parameters: Mapping[str, str]) -> None:
    if parameters:
        raise _usage(f"it has the unknown parameter {min(parameters)}")


def _usage(problem: str) -> ChangelogError:
    return ChangelogError(Kind.USAGE, f"[source] dsn: {problem}", hint=f'write it as in "{_FORM}"')
