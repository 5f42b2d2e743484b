"""Looks up schemas by id in a schema registry. Executors run this, so it needs only the standard library.

API: https://docs.confluent.io/platform/current/schema-registry/develop/api.html#get--schemas-ids-int-%20id
"""

import base64
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Self
from urllib.parse import urlsplit

from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas.avro import Schema

TIMEOUT_S = 10

_KNOWN = {
    "basic.auth.user.info",
    "bearer.auth.token",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "timeout",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorRegistry:
    """A schema registry that can be reached at each of `urls`. Executors read the files in `ca_file`,
    `certificate_file` and `key_file`, so these files must be on every executor's machine.
    """

    urls: tuple[str, ...]
    login: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    timeout_s: float = TIMEOUT_S

    @classmethod
    def of_options(cls, urls: str, options: Mapping[str, Any]) -> Self:
        """Returns a registry. `urls` are its URLs, separated by commas, and `options` are options of confluent-kafka's
        registry client.

        Raises ChangelogError (USAGE) for an option that is not supported.
        """
        for name in sorted(options.keys() - _KNOWN):
            supported = ", ".join(sorted(_KNOWN))
            raise ChangelogError(
                Kind.USAGE, f"[sink] registry_client: jobs do not support {name}", hint=f"they support {supported}"
            )
        return cls(
            urls=tuple(url.strip().rstrip("/") for url in urls.split(",")),
            login=options.get("basic.auth.user.info"),
            token=options.get("bearer.auth.token"),
            ca_file=options.get("ssl.ca.location"),
            certificate_file=options.get("ssl.certificate.location"),
            key_file=options.get("ssl.key.location"),
            timeout_s=float(options.get("timeout", TIMEOUT_S)),
        )

    def schema(self, id_: int) -> Schema:
        """Returns the schema with this id. Each process fetches a schema only once, because the schema of an id never
        changes.

        Raises ChangelogError: PRECONDITION if the registry has no such schema or its answer cannot be read, ACCESS if
        the registry rejects the credentials, CONNECTION if the registry cannot be reached at any URL, or answers with
        any other error.
        """
        return _fetched(self, id_)


@lru_cache(maxsize=1024)
def _fetched(registry: ExecutorRegistry, id_: int) -> Schema:
    *first_urls, last_url = registry.urls
    for url in first_urls:
        try:
            return _fetched_from(registry, url, id_)
        except ChangelogError as error:
            if error.kind is not Kind.CONNECTION:
                raise
    return _fetched_from(registry, last_url, id_)


def _fetched_from(registry: ExecutorRegistry, url: str, id_: int) -> Schema:
    parts = urlsplit(url)
    login = registry.login or parts.netloc.rpartition("@")[0]
    where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    action = f"asking for schema {id_} at the registry {where}"
    request = urllib.request.Request(f"{where}/schemas/ids/{id_}")
    if login:
        request.add_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
    elif registry.token:
        request.add_header("Authorization", f"Bearer {registry.token}")
    try:
        with urllib.request.urlopen(request, timeout=registry.timeout_s, context=_context(registry, parts)) as answer:
            return json.loads(json.load(answer)["schema"])
    except urllib.error.HTTPError as error:
        error.close()
        raise _refused(error.code, id_, where, action) from None
    except OSError as error:
        raise ChangelogError(Kind.CONNECTION, f"{action}: {type(error).__name__}") from None
    except (ValueError, KeyError, TypeError):
        raise ChangelogError(
            Kind.PRECONDITION,
            f"{action}: the server did not answer as a schema registry does",
            hint="correct [sink] registry",
        ) from None


def _context(registry: ExecutorRegistry, parts: Any) -> ssl.SSLContext | None:
    if parts.scheme != "https":
        return None
    context = ssl.create_default_context(cafile=registry.ca_file)
    if registry.certificate_file:
        context.load_cert_chain(registry.certificate_file, registry.key_file)
    return context


def _refused(status: int, id_: int, where: str, action: str) -> ChangelogError:
    match status:
        case 404:
            return ChangelogError(
                Kind.PRECONDITION,
                f"schema {id_} is unknown to the registry {where}",
                hint="the schema may be in another registry; check [sink] registry",
            )
        case 401 | 403:
            return ChangelogError(
                Kind.ACCESS, f"{action}: HTTP {status}", hint="give other credentials in [sink] registry_client"
            )
    return ChangelogError(Kind.CONNECTION, f"{action}: HTTP {status}")
