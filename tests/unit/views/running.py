"""Makes a changelog with a few rows, serves its views in an HTTP API, and sends requests to this API."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from changelog.connectors import config
from changelog.connectors.config import Config
from changelog.connectors.sinks.files.sink import FileSink
from changelog.connectors.views.serving import serving_views
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar import batch
from changelog.envelope.key import key_text
from changelog.envelope.model import MISSING, Op, Record, position_of
from changelog.envelope.position import commit_text
from changelog.schemas.types import ColumnType, Decimal, Primitive
from tests.patience import PATIENCE_S, until
from tests.unit.api.shop import version_of
from tests.unit.records import record

CONFIG = """
name = "booking"
source = {{ kind = "postgres", dsn = "host=127.0.0.1 port=9 dbname=app" }}
sink = {{ path = "log" }}
tables = {{ include = ["*"] }}
serve = {{ port = 0{serve} }}
{rest}
"""
ORDER: dict[str, ColumnType] = {
    "id": Primitive.LONG,
    "status": Primitive.STRING,
    "amount": Decimal(precision=30, scale=2),
    "note": Primitive.STRING,
}
SETTINGS = {"order": {"key": ["id"]}, "seat": {"key": ["hall", "row", "seat"]}}
SEATS = [["A", "1", "1"], ["A", "1", "2"], ["A", "10", "1"], ["B", "1", "a/b ?#%é"], ["B", "2", ""]]

NEW = '{"id":41,"status":"NEW","amount":"0.10","note":"x"}'
PAID = '{"id":42,"status":"PAID","amount":"12345678901234567890.10","note":1E400}'
PART = '{"id":43,"status":"PAID","amount":"1.00"}'


def records() -> list[Record]:
    """Returns the changes of the changelog, in the order of their positions."""
    first = record(Op.CREATE, NEW, commit=1, key="41")
    return [
        version_of("order", ORDER, first),
        first,
        record(Op.CREATE, '{"id":42,"status":"NEW"}', commit=2, key="42"),
        record(Op.UPDATE, PAID, '{"id":42,"status":"NEW"}', commit=3, key="42"),
        record(Op.UPDATE, PART, MISSING, commit=4, key="43", unavailable=("note",)),
        record(Op.CREATE, '{"id":44}', commit=5, key="44"),
        record(Op.DELETE, None, '{"id":44}', commit=6, key="44"),
        *(
            record(Op.CREATE, json.dumps({"seat": seat}), commit=7 + n, key=key_text(seat), entity="seat")
            for n, seat in enumerate(SEATS)
        ),
    ]


def commit(path: Path, changes: list[Record]) -> None:
    """Stores changes at the end of the log in one commit."""
    sink = FileSink(path)
    sink.recover()
    last = max(map(position_of, changes))
    sink.add([batch.from_records(changes)])
    sink.commit(Checkpoint(position=last, through=commit_text(last.commit), epoch=1, settings=SETTINGS))
    sink.close()


def settings(folder: Path, rest: str = "", *, serve: str = "") -> Config:
    """Writes a configuration into the folder, and returns it. `serve` has further keys of [serve]."""
    file = folder / "changelog.toml"
    file.write_text(CONFIG.format(rest=rest, serve=f", {serve}" if serve else ""), "utf-8")
    return config.load(file, {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Got:
    """The answer to a request."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Api:
    """An API that answers at an address."""

    address: str

    def get(self, target: str, **headers: str) -> Got:
        """Sends a request. The names of headers have underscores in place of hyphens."""
        with closing(http.client.HTTPConnection(urlsplit(self.address).netloc, timeout=PATIENCE_S)) as connection:
            connection.request("GET", target, headers={name.replace("_", "-"): text for name, text in headers.items()})
            answer = connection.getresponse()
            return Got(status=answer.status, headers=answer.headers, body=answer.read())

    def rows(self, target: str) -> list[Any]:
        """Returns the rows of the page at an address and of all pages after it. Asks again while partitions move."""
        rows: list[Any] = []
        page = Got(status=503, headers=http.client.HTTPMessage(), body=b"")

        def is_answered() -> bool:
            nonlocal page
            page = self.get(target)
            return page.status != 503

        while target:
            until(is_answered, f"the rows of {target} cannot be read")
            rows += page.json["rows"]
            target = page.json["next"]
        return rows


@contextmanager
def running(settings: Config, *, archive: Path | None = None, wait_s: float = 0.05) -> Iterator[Api]:
    """Serves the views of a configuration in a thread of this process. Yields the API of these views."""
    with serving_views(settings, archive=archive, wait_s=wait_s) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            until(lambda: server.server.started or not thread.is_alive(), "the API does not start")
            yield Api(server.address.removesuffix("/"))
        finally:
            server.server.should_exit = True
            thread.join(PATIENCE_S)
