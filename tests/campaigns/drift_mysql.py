"""Runs the job `detect_drift` on MariaDB and on MySQL while threads write, roll back and commit in two phases.

In some rounds, the campaign plants drift: it falsifies rows in the files of the changelog. The job must find exactly
the planted drift, with the right columns, and no drift in other rounds.
"""

import contextlib
import json
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from changelog.connectors.servers.mysql import MysqlServer
from tests.campaigns._detected import Drifted, detected
from tests.campaigns._mysql.accounts import TABLE, writing
from tests.campaigns._pieces import Campaign, Figures, Piece
from tests.campaigns._plant import Edit, last_only, latest, lost, rewrite, setting
from tests.campaigns._service import Service, is_read
from tests.campaigns.drift import session
from tests.servers.mysql import FLAVOURS, fresh_mysql_database, mysql_server

ROUNDS = 5
"""How many rounds share one database and its changelog. The next rounds use a new database on the other server."""

STATIC = 200
MADE_UP = 1_000_000
XA_SHARES = (0.0, 0.1)
WAIT_S = 60.0

STATIC_ROW = "({0}, 'note {0}', {0} / 8, {0} / 3, '[{0}]', 0)"
STATIC_TABLE = (
    "CREATE TABLE odd (id INT PRIMARY KEY, note TEXT, price DECIMAL(9,2), ratio FLOAT, doc JSON, touched INT)",
    f"INSERT INTO odd VALUES {', '.join(map(STATIC_ROW.format, range(STATIC)))}",
)
"""The statements that create the table for whose rows drift is planted. No thread writes to it, because each published
change of a row would remove the drift.
"""

CONFIG = """
name = "drift"
[source]
kind = "mysql"
dsn = {dsn}
[sink]
path = "changelog"
commit_seconds = 0.5
[service]
listen = "127.0.0.1:0"
[entities.odd]
table = "{database}.odd"
[entities.account]
table = "{database}.account"
"""


def campaign(rounds: int = ROUNDS) -> Campaign:
    """A round is one run of the job. A piece has `rounds` rounds, and the pieces use the two servers in turn."""
    return Campaign(site=lambda: _site(rounds), rounds=rounds)


@contextlib.contextmanager
def _site(rounds: int) -> Iterator[Callable[[Piece], Figures]]:
    with contextlib.ExitStack() as open_:
        folder = Path(open_.enter_context(tempfile.TemporaryDirectory(prefix="changelog-drift-")))
        servers = [open_.enter_context(mysql_server(flavour)) for flavour in FLAVOURS]
        open_.enter_context(session(folder))

        def run_piece(piece: Piece) -> Figures:
            server = servers[piece.first // rounds % len(servers)]
            piece_folder = folder / str(piece.first)
            piece_folder.mkdir()
            try:
                with fresh_mysql_database(server) as database:
                    return _Block(server, database, piece_folder, random.Random(piece.seed)).run(piece.rounds)
            finally:
                shutil.rmtree(piece_folder)

        yield run_piece


class _Block:
    def __init__(self, server: MysqlServer, database: str, folder: Path, rng: random.Random) -> None:
        self._server, self._database, self._folder, self._rng = server, database, folder, rng
        self._config, self._log = folder / "changelog.toml", folder / "changelog"
        dsn = json.dumps(f"mysql://root@{server.host}:{server.port}/{database}")
        self._config.write_text(CONFIG.format(dsn=dsn, database=database), "utf-8")
        self._service = Service(self._config)
        self._figures: Counter[str] = Counter()
        self._took: list[float] = []

    def run(self, rounds: int) -> Figures:
        self._sql(*TABLE, *STATIC_TABLE)
        self._service.start()
        try:
            self._service.until(self._log, is_read, WAIT_S)
            seed, xa = self._rng.getrandbits(32), self._rng.choice(XA_SHARES)
            with writing(self._server, self._database, seed, xa=xa) as writers:
                for number in range(rounds):
                    self._service.check()
                    self._round(plants=number % 2 == 0)
            self._figures["transactions"] += sum(writer.transactions for writer in writers)
        finally:
            self._service.kill()
        return {**self._figures, "run_s": [round(sum(self._took) / len(self._took), 1)]}

    def _round(self, *, plants: bool) -> None:
        planted = self._plant() if plants else {}
        began = time.monotonic()
        drifted, entities = detected(self._config, self._folder / "drift", wait_s=300)
        self._took.append(time.monotonic() - began)
        wrong = [
            (key, planted.get(key), drifted.get(key))
            for key in sorted(drifted.keys() | planted.keys())
            if drifted.get(key) != planted.get(key)
        ]
        text = f"{len(wrong)} keys differ from the {len(planted)} planted: (key, planted, found): {wrong[:5]}"
        assert not wrong, text
        self._figures["rows"] += sum(entity["sourceRows"] for entity in entities.values())
        self._figures["planted"] += len(planted)
        self._figures["found"] += len(drifted)
        if planted:
            self._heal()

    def _plant(self) -> Drifted:
        """Falsifies some rows of `odd` in the files of the changelog. Returns the drift that the job must find."""
        rows = {key: row for key, row in latest(self._log, "odd").items() if int(key[1]) < STATIC}
        edits: dict[tuple[str, str], Edit] = {}
        planted: dict[tuple[str, str], tuple[str, ...]] = {}
        for key in self._rng.sample(sorted(rows), self._rng.randrange(1, STATIC)):
            match self._rng.randrange(4):
                case 0:
                    edits[key], planted[key] = lost, ("missing",)
                case 1:
                    made_up = str(MADE_UP + int(key[1]))
                    edits[key] = last_only(rows[key]["position"], _made_up(made_up))
                    planted["odd", made_up] = ("extra",)
                case _:
                    values = {"note": '"another"', "price": '"0.0"', "ratio": "-0", "doc": "[]"}
                    names = self._rng.sample(sorted(values), self._rng.choice((1, 1, 4)))
                    edits[key] = last_only(rows[key]["position"], setting({name: values[name] for name in names}))
                    planted[key] = ("changed", *sorted(names))
        rewrite(self._log, edits)
        return planted

    def _heal(self) -> None:
        """Removes the planted drift: writes to all affected keys in the table, and waits until these writes are
        published.
        """
        self._sql(
            f"INSERT INTO odd (id) SELECT id + {MADE_UP} FROM odd",
            f"DELETE FROM odd WHERE id >= {MADE_UP}",
            "UPDATE odd SET touched = touched + 1",
        )
        [(touched,)] = self._sql("SELECT MIN(touched) FROM odd")
        text = f'"touched":{touched}'
        self._service.until(
            self._log,
            lambda _: sum(text in (row["current"] or "") for row in latest(self._log, "odd").values()) == STATIC,
            WAIT_S,
        )

    def _sql(self, *statements: str) -> list[tuple[int, ...]]:
        with self._server.connect(self._database) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())


def _made_up(key: str) -> Edit:
    return lambda row: [row, {**row, "key": key}]
