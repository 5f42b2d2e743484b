"""Lets a source read a table in chunks while eight threads update it. For each row, judges whether it fits the place in
the log for which it was published.

Rounds take turns: MariaDB; MySQL; MySQL with `binlog_order_commits = OFF`; MariaDB with XA transactions; and MySQL with
XA transactions. In the last three, commits may become visible in another order than that of the log. Some commits are
delayed after they are logged and before they become visible.

At the same time, the table is also read by marks (see `_mysql.marks`). `marks` counts the chunks of these reads, and
`marks_wrong` the chunks that have a stale row. In the rounds of the first two kinds, no chunk may have a stale row.
Each of the other rounds lasts until one has. This proves that the round had commits that an incorrect reader would
place wrongly.
"""

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from changelog.connectors.servers.mysql import Flavour, MysqlServer
from changelog.connectors.sources.mysql.settings import Settings
from changelog.connectors.sources.mysql.source import MysqlSource
from changelog.envelope.entity import Entity
from changelog.envelope.model import Stamp
from tests.campaigns._mysql.hot import HotJudge, create, updated
from tests.campaigns._pieces import Campaign, Figures, Piece
from tests.servers.mysql import fresh_mysql_database, mysql_server

CHUNK_ROWS = 10
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A server and its settings. `xa` says that there are also XA transactions."""

    name: str
    flavour: Flavour
    order: str | None = None
    xa: bool = False

    @property
    def is_ordered(self) -> bool:
        """Whether commits become visible in the order of the log."""
        return self.order != "OFF" and not self.xa

    def running(self) -> contextlib.AbstractContextManager[MysqlServer]:
        """Runs the server. At a commit, it flushes its log to the disk. This is slow, so further commits gather in
        groups.
        """
        settings = {"sync_binlog": "1", **({} if self.order is None else {"binlog_order_commits": self.order})}
        return mysql_server(self.flavour, settings)


SETUPS = (
    Setup(name="mariadb", flavour="mariadb"),
    Setup(name="mysql", flavour="mysql", order="ON"),
    Setup(name="mysql_unordered", flavour="mysql", order="OFF"),
    Setup(name="mariadb_xa", flavour="mariadb", xa=True),
    Setup(name="mysql_xa", flavour="mysql", order="ON", xa=True),
)


def campaign() -> Campaign:
    """A round reads the table once, from the first row to the last."""
    return Campaign(site=_site)


@contextlib.contextmanager
def _site() -> Iterator[Callable[[Piece], Figures]]:
    with contextlib.ExitStack() as stack:
        servers = {setup.name: stack.enter_context(setup.running()) for setup in SETUPS}

        def run_piece(piece: Piece) -> Figures:
            setup = SETUPS[piece.first % len(SETUPS)]
            judge, chunks = read_once(servers[setup.name], piece.seed, xa=setup.xa, fails_marks=not setup.is_ordered)
            assert not judge.lost, f"{judge.lost} updates are lost"
            assert not judge.wrong, f"the last states of {judge.wrong} rows are not those of the table"
            assert not judge.stale, f"{judge.stale} of {judge.reads} rows are stale"
            assert setup.is_ordered == (not judge.marks.wrong), (
                f"{judge.marks.wrong} chunks that were read by marks are wrong"
            )
            return {
                "chunks": {setup.name: chunks},
                "marks": {setup.name: judge.marks.judged},
                "marks_wrong": {setup.name: judge.marks.wrong},
                "changes": judge.updates,
                "reads": judge.reads,
                "stale": 0,
                "lost": 0,
            }

        yield run_piece


def read_once(server: MysqlServer, seed: int, *, xa: bool = False, fails_marks: bool = False) -> tuple[HotJudge, int]:
    """Reads the table once, while threads update it. With `xa`, some updates are in XA transactions. Returns the judge
    of the rows, and how many chunks the source read.

    With `fails_marks`, the updates continue until a chunk that was read by marks is wrong.
    """
    with fresh_mysql_database(server) as database:
        create(server, database)
        return _read(server, database, seed, xa=xa, fails_marks=fails_marks)


def _read(server: MysqlServer, database: str, seed: int, *, xa: bool, fails_marks: bool) -> tuple[HotJudge, int]:
    reached, judge = Counter[str](), HotJudge()

    def reach(name: str) -> None:
        reached[name] += 1

    source = MysqlSource(_settings(server, database), [_entity(database)], lambda: None, reach=reach)
    with contextlib.closing(source):
        taking = _Taking(source, judge)
        with updated(server, database, random.Random(seed).getrandbits(32), judge.marks.chunks, xa=xa):
            taking.until(lambda: bool(reached["reading:complete"] and (judge.marks.wrong or not fails_marks)))
        end = source.end()
        taking.until(lambda: taking.through >= end)
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id, version FROM hot")
        table: dict[int, int] = dict(cursor.fetchall())
    judge.wrong = sum(judge.versions.get(number) != version for number, version in table.items())
    return judge, reached["window:marked"]


@dataclass(slots=True)
class _Taking:
    """Reads from a source, and judges its rows. The source has returned everything up to the place `through` in the
    log.
    """

    source: MysqlSource
    judge: HotJudge
    through: str = ""

    def until(self, is_over: Callable[[], bool]) -> None:
        """Reads until `is_over` returns true."""
        deadline = time.monotonic() + TIMEOUT_S
        while not is_over():
            assert time.monotonic() < deadline, "the source did not read all rows, or no chunk read by marks is wrong"
            piece = self.source.read(0.1)
            if piece is not None:
                for rows in piece.rows:
                    self.judge.add(rows)
                self.through = piece.checkpoint.through


def _settings(server: MysqlServer, database: str) -> Settings:
    dsn = f"mysql://root@{server.host}:{server.port}/{database}"
    return Settings(name=database, dsn=dsn, hmac_key=b"", chunk_rows=CHUNK_ROWS)


def _entity(database: str) -> Entity:
    return Entity(
        name="hot",
        table=(database, "hot"),
        key=("id",),
        partition_by=("id",),
        partitions=1,
        masks={},
        default_stamp=Stamp(api_version="", service_name="", identifier=""),
    )
