"""Decides whether a server's log continues a changelog, and from where.

A changelog continues on any server whose log has all transactions that the changelog has: the same server, or a replica
that was promoted. On another server, these transactions may be at other places in the files of the log. The stream
still continues correctly, because servers find the next transactions by GTIDs. But positions are made of places in the
files, so a new epoch begins with another server.

The part of a checkpoint's `source` that this module writes:

- `server`: the identity of the server. `flavour`: whether the server is MySQL or MariaDB.
- `gtids`: the transactions whose rows were delivered completely.
- `resume`: the transactions that the server need not send again; absent if it equals `gtids`. Prepared XA transactions
  are not in it: the service holds their rows only in memory, so the server must send them again after a restart.
- `half`: the GTID of the transaction that is published only in part; absent if there is no such transaction.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from changelog.connectors.findings import Finding, fail, ok
from changelog.connectors.sources.mysql.admin.catalog import Query
from changelog.connectors.sources.mysql.admin.server_log import LogEnd, log_end, purged, server_identity
from changelog.connectors.sources.mysql.session.flavour import Flavour, ServerVersion
from changelog.connectors.sources.mysql.values.positions.gtids import Gtids, parse_gtids
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.errors import OVER_GAP, ChangelogError, Kind
from changelog.envelope.position import commit_text

FIRST_EPOCH = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStart:
    """Where a stream begins.

    `server` is the server's identity. `epoch` is the epoch of the stream's positions. `through` is the coordinate (the
    place in the log, as one number) up to which the changelog is complete. It is 0 if the changelog was not made from
    the log files that this server has now. `received` has the transactions that the changelog has, and `resume` the
    transactions that the server need not send. `joined` is true if the server's log continues the log from which the
    changelog was made. `half` describes the transaction that is published only in part: its GTID, and the epoch and the
    commit number in the positions of its published rows. `half` is None if there is no such transaction.
    """

    server: str
    flavour: Flavour
    epoch: int
    through: int
    received: Gtids
    resume: Gtids
    joined: bool
    half: tuple[str, int, int] | None = None

    @property
    def source(self) -> Mapping[str, Any]:
        """The members that this module writes into a checkpoint's `source`."""
        members = {"server": self.server, "flavour": str(self.flavour), "gtids": self.received.text}
        if self.resume.text != self.received.text:
            members["resume"] = self.resume.text
        if self.half is not None:
            members["half"] = self.half[0]
        return members

    @property
    def through_text(self) -> str:
        """`through` as a `Checkpoint.through`."""
        return commit_text(self.through)

    @classmethod
    def trace(cls, query: Query, version: ServerVersion, checkpoint: Checkpoint | None, *, accept: bool) -> "LogStart":
        """Returns where the stream continues the changelog that ends at `checkpoint`, or where a new changelog begins.

        Raises ChangelogError: GAP if the server has purged transactions that the changelog lacks, DIVERGED if the
        server has another flavour, or lacks transactions that the changelog has. With `accept`, it is no error if the
        server lacks transactions. Then the changelog continues at the present end of the log, and tables that were
        already read completely are not read again.
        """
        server, end = server_identity(query, version), log_end(query, version)
        if checkpoint is None:
            return cls._at_end(server, version.flavour, end, FIRST_EPOCH)
        if checkpoint.source.get("flavour") != version.flavour:
            made_from = checkpoint.source.get("flavour", "another kind of database")
            raise ChangelogError(
                Kind.DIVERGED,
                f"the changelog was made from {made_from}, but the server is {version.flavour}",
                hint=f"connect to the server from which the changelog was made; or {OVER_GAP}",
            )
        received = parse_gtids(version.flavour, checkpoint.source["gtids"])
        resume, half = _resume(version.flavour, checkpoint), _half(checkpoint)
        missing = _logged(query, version, end.gtids).missing(_published(received, half))
        if missing and accept:
            return cls._at_end(server, version.flavour, end, checkpoint.epoch + 1)
        if missing:
            raise _diverged(server, checkpoint, missing)
        lost = resume.missing(purged(query, version))
        if lost:
            raise ChangelogError(
                Kind.GAP,
                f"the server has purged transactions that are not published yet: {_short(lost)}",
                hint=OVER_GAP,
            )
        through = int(checkpoint.through, 16)
        same_files = server == checkpoint.source["server"] and end.coordinate >= through
        return cls(
            server=server,
            flavour=version.flavour,
            epoch=checkpoint.epoch if same_files else checkpoint.epoch + 1,
            through=through if same_files else 0,
            received=received,
            resume=resume,
            joined=True,
            half=half,
        )

    @classmethod
    def _at_end(cls, server: str, flavour: Flavour, end: LogEnd, epoch: int) -> "LogStart":
        return cls(
            server=server,
            flavour=flavour,
            epoch=epoch,
            through=end.coordinate,
            received=end.gtids,
            resume=end.gtids,
            joined=False,
        )


def reaches_back(query: Query, version: ServerVersion, checkpoint: Checkpoint | None) -> Finding:
    """Returns a finding that says whether the server's log continues the changelog that ends at `checkpoint`."""
    if checkpoint is None:
        return ok("log", "the changelog will begin at the present end of the binary log")
    try:
        LogStart.trace(query, version, checkpoint, accept=False)
    except ChangelogError as error:
        if error.kind not in (Kind.GAP, Kind.DIVERGED):
            raise
        return fail("log", error.message, error.hint or OVER_GAP)
    return ok("log", "the binary log continues the changelog")


def is_lost(query: Query, version: ServerVersion, checkpoint: Checkpoint) -> bool:
    """Returns whether the server has purged transactions that the changelog lacks.

    Returns False if the changelog was made from a server of another flavour: transactions of two flavours cannot be
    compared.
    """
    if checkpoint.source.get("flavour") != version.flavour:
        return False
    return bool(_resume(version.flavour, checkpoint).missing(purged(query, version)))


def _resume(flavour: Flavour, checkpoint: Checkpoint) -> Gtids:
    return parse_gtids(flavour, checkpoint.source.get("resume", checkpoint.source["gtids"]))


def _half(checkpoint: Checkpoint) -> tuple[str, int, int] | None:
    if not checkpoint.partial or checkpoint.position is None or "half" not in checkpoint.source:
        return None
    return checkpoint.source["half"], checkpoint.position.epoch, checkpoint.position.commit


def _published(received: Gtids, half: tuple[str, int, int] | None) -> Gtids:
    """Returns the transactions whose rows are in the changelog, including the one that is published only in part."""
    if half is None:
        return received
    builder = received.builder()
    builder.add(half[0])
    return builder.build()


def _logged(query: Query, version: ServerVersion, executed: Gtids) -> Gtids:
    """Returns the transactions in the server's log.

    MySQL can send a transaction before it lists the transaction as executed. Such a transaction is in `gtid_owned`.
    """
    if version.flavour is Flavour.MARIADB:
        return executed
    [(owned,)] = query("SELECT @@global.gtid_owned", ())
    builder = executed.builder()
    for source, numbers in re.findall(r"([0-9a-f-]{36}(?::[a-z_]\w*)?)((?::\d+#\d+)+)", owned):
        for number in re.findall(r":(\d+)#", numbers):
            builder.add(f"{source}:{number}")
    return builder.build()


def _diverged(server: str, checkpoint: Checkpoint, missing: Gtids) -> ChangelogError:
    other = (
        "" if server == checkpoint.source["server"] else "; this is not the server from which the changelog was made"
    )
    return ChangelogError(
        Kind.DIVERGED,
        f"the server's log lacks transactions that are published: {_short(missing)}{other}",
        hint=f"connect to the server that has them; or {OVER_GAP}",
    )


def _short(gtids: Gtids) -> str:
    """Returns the text of a set of transactions. Only the beginning of a long text is returned."""
    text = gtids.text
    return text if len(text) <= 200 else f"{text[:200]}…"
