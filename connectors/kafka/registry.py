"""Looks up and registers schemas in a schema registry, a server that maps schemas to ids and back.

This module uses confluent-kafka's client, and passes the user's options to that client. The API and its error codes are
on https://docs.confluent.io/platform/current/schema-registry/develop/api.html
"""

import json
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import msgspec
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError

# The client raises the errors of one of two HTTP libraries. The client's module `_httpx_compat` imports the one in use.
from confluent_kafka.schema_registry.common._httpx_compat import httpx
from confluent_kafka.schema_registry.error import OAuthTokenError

from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas import avro

COMMAND = "changelog schemas register"

TIMEOUT_S = 10
"""The seconds that a request may take, unless the option `timeout` says otherwise.

Without a timeout, a registry that hangs would block the service forever."""

_NO_SUBJECT, _NO_SCHEMA = 40401, 40403
_DETAIL_MAX = 300


class Registry:
    """A client of the registry at `url`, which may be several addresses of one registry, separated by commas.

    `options` are those of confluent-kafka's client. `auto_register` lets `id_of` register schemas. `section` is the
    section of the configuration that has the options. Every method may raise ChangelogError: CONNECTION if the registry
    cannot be reached or fails, ACCESS if it refuses the credentials, PRECONDITION if it refuses the request. The
    constructor raises USAGE if an option is wrong.
    """

    def __init__(
        self, url: str, options: Mapping[str, Any], *, auto_register: bool = False, section: str = "[sink]"
    ) -> None:
        self.where = ",".join(map(_without_credentials, url.split(",")))
        self._auto_register, self._section = auto_register, section
        self._schemas: dict[int, avro.Schema] = {}
        try:
            self._client = SchemaRegistryClient({"timeout": TIMEOUT_S, **options, "url": url})
        except (ValueError, TypeError) as error:
            detail = "an address must begin with http:// or https://" if "url" in str(error) else str(error)
            raise ChangelogError(Kind.USAGE, f"{section} registry or registry_client: {detail}") from None
        except OSError as error:
            raise ChangelogError(
                Kind.USAGE, f"{section} registry_client: a certificate or key cannot be read ({error.strerror})"
            ) from error
        # The codec that holds this object is never closed. So the client is closed when this object is deleted.
        weakref.finalize(self, self._client.close)

    def id_of(self, subject: str, schema: avro.Schema) -> int:
        """Returns the schema's id under `subject`.

        If the schema has no id there, the method registers it, provided that `auto_register` is set. Otherwise,
        PRECONDITION is raised.
        """
        id_ = self.look_up(subject, schema)
        if id_ is None and self._auto_register:
            id_ = self.register(subject, schema)
        if id_ is None:
            raise ChangelogError(
                Kind.PRECONDITION,
                f"subject {subject} of the registry {self.where} has no schema for these columns",
                hint=f"register it with `{COMMAND} --yes`, or set [sink] auto_register = true",
            )
        return id_

    def look_up(self, subject: str, schema: avro.Schema) -> int | None:
        """Returns the schema's id under `subject`; None if the schema is not registered there."""
        with self._translated(f"looking up {subject}"):
            try:
                return _id(self._client.lookup_schema(subject, _avro(schema)))
            except SchemaRegistryError as error:
                if error.error_code in (_NO_SUBJECT, _NO_SCHEMA):
                    return None
                raise

    def register(self, subject: str, schema: avro.Schema) -> int:
        """Registers the schema under `subject`, unless it is already registered there, and returns its id."""
        with self._translated(f"registering {subject}"):
            return self._client.register_schema(subject, _avro(schema))

    def is_compatible(self, subject: str, schema: avro.Schema) -> bool | None:
        """Returns whether the registry would accept the schema, by the subject's compatibility level.

        Returns None if the subject does not exist: the schema would then be its first.
        """
        with self._translated(f"checking {subject}"):
            try:
                return self._client.test_compatibility_all_versions(subject, _avro(schema))
            except SchemaRegistryError as error:
                if error.error_code == _NO_SUBJECT:
                    return None
                raise

    def versions(self, subject: str) -> list[tuple[int, str]]:
        """Returns the number and the schema text of each version of a subject, oldest first.

        The list is empty if there is no such subject.
        """
        with self._translated(f"asking for the versions of {subject}"):
            try:
                numbers = self._client.get_versions(subject)
            except SchemaRegistryError as error:
                if error.error_code == _NO_SUBJECT:
                    return []
                raise
            versions = [(number, self._client.get_version(subject, number)) for number in sorted(numbers)]
        return [(number, version.schema.schema_str or "null") for number, version in versions]

    def schema(self, id_: int) -> avro.Schema:
        """Returns the schema with an id. Asks the registry once for each id, because the schema of an id never changes.

        Raises PRECONDITION if there is no schema with this id.
        """
        if id_ not in self._schemas:
            with self._translated(f"asking for schema {id_}"):
                schema = self._client.get_schema(id_)
            self._schemas[id_] = json.loads(schema.schema_str or "null")
        return self._schemas[id_]

    def close(self) -> None:
        """Closes the connections to the registry."""
        self._client.close()

    @contextmanager
    def _translated(self, action: str) -> Iterator[None]:
        where = f"{action} at the registry {self.where}"
        try:
            yield
        except SchemaRegistryError as error:
            raise _error(error, where, self._section) from error
        except OAuthTokenError as error:
            hint = _CREDENTIALS.format(self._section)
            raise ChangelogError(Kind.ACCESS, f"{where}: no token was issued", hint=hint) from error
        except httpx.TransportError as error:
            detail = _line(str(error)) or type(error).__name__
            raise ChangelogError(Kind.CONNECTION, f"{where}: {detail}") from error
        except (ValueError, TypeError, KeyError, httpx.HTTPError) as error:
            raise ChangelogError(
                Kind.PRECONDITION,
                f"{where}: the answer is not that of a schema registry",
                hint=_ADDRESS.format(self._section),
            ) from error


_CREDENTIALS = "give other credentials in {} registry_client"
_ADDRESS = "correct {} registry: for Confluent's registry it is http://HOST:8081, for others it also has a path"


def _error(error: SchemaRegistryError, where: str, section: str) -> ChangelogError:
    """Translates an error of the registry to a ChangelogError."""
    detail = f"{where}: {_line(error.error_message or 'refused')} (HTTP {error.http_status_code})"
    match error.http_status_code:
        case 401 | 403:
            return ChangelogError(Kind.ACCESS, detail, hint=_CREDENTIALS.format(section))
        case 409:
            return ChangelogError(
                Kind.PRECONDITION,
                detail,
                hint="the schema is incompatible with earlier ones: see the subject's compatibility level",
            )
        case 404 if error.error_code in (_NO_SUBJECT, _NO_SCHEMA):
            return ChangelogError(
                Kind.PRECONDITION, detail, hint=f"the schema may belong to another registry; see {section} registry"
            )
        case 404 | 405:
            return ChangelogError(Kind.PRECONDITION, detail, hint=_ADDRESS.format(section))
        case 408 | 429:
            return ChangelogError(Kind.CONNECTION, detail)
        case status if status >= 500:
            return ChangelogError(Kind.CONNECTION, detail)
    return ChangelogError(Kind.PRECONDITION, detail)


def _avro(schema: avro.Schema) -> Schema:
    return Schema(msgspec.json.encode(schema).decode(), "AVRO")


def _id(registered: Any) -> int:
    id_: int = registered.schema_id
    return id_


def _line(text: str) -> str:
    return " ".join(text.split())[:_DETAIL_MAX]


def _without_credentials(url: str) -> str:
    parts = urlsplit(url.strip())
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
