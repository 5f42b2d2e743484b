"""Faults under a load of two-phase commits, migrations, COPY, MERGE, cascades, key swaps and long values, with tables
that are added and repaired meanwhile; judged by an oracle that shares no code with the product.

Triggers record every change, and a slot of `test_decoding` tells the order of the commits: each row of the changelog
must have the states, the stamp and the place that these say, none is missing, and its fold is the tables.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from pathlib import Path

from connectors.embedded import temporary_server
from connectors.sinks.filelog import read_checkpoint
from connectors.unprivileged import temporary_folder
from envelope.checkpoint import Checkpoint
from tests.campaigns._audit.block import POSTGRES, Block
from tests.campaigns._audit.rows import Row, of_files
from tests.campaigns._pieces import Campaign, Figures, Piece
from tests.campaigns._service import FAIL_POINTS
from tests.campaigns.kafka import KEEP
from tests.proxy import Proxy

ROUNDS = 20


def campaign() -> Campaign:
    """A round is a fault; ROUNDS of them under one load, on a server of their own."""
    return Campaign(site=lambda: nullcontext(_block), rounds=ROUNDS)


class Files:
    """A log of files; parts of `FAIL_POINTS` are the sink's."""

    section = 'path = "changelog"\ncommit_rows = 500\ncommit_seconds = 0.1'
    fail_points = tuple(point for point in FAIL_POINTS if point.startswith("files:"))

    def __init__(self, path: Path) -> None:
        self._path = path

    def stored(self) -> Checkpoint | None:
        return read_checkpoint(self._path)

    def rows(self, entities: Sequence[str]) -> Iterator[Row]:
        return of_files(self._path)


def _block(piece: Piece) -> Figures:
    with temporary_folder("changelog-audit-") as folder, temporary_server(settings=POSTGRES) as server:
        try:
            with Proxy("127.0.0.1", server.port) as link:
                block = Block(server, link, folder, piece.seed, Files(folder / "changelog"))
                with closing(block):
                    return block.run(piece.rounds)
        except BaseException:
            if kept := os.environ.get(KEEP):
                shutil.copytree(folder, Path(kept) / f"audit-{piece.seed}", dirs_exist_ok=True)
            raise
