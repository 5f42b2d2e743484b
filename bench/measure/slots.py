"""Opens a replication slot of PostgreSQL for benchmarks."""

from changelog.connectors.sources.postgres.stream.replication import ReplicationConnection
from changelog.connectors.sources.postgres.values.lsn import parse_lsn, through_text
from changelog.envelope.checkpoint import Checkpoint


def first_checkpoint(dsn: str, slot: str) -> Checkpoint:
    """Returns the checkpoint from which a slot is read as if the benchmark's table had been read completely before."""
    replication = ReplicationConnection.connect(dsn)
    system = replication.identify_system()
    [(confirmed,)] = replication.query(
        f"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{slot}'"
    )
    replication.close()
    return Checkpoint(
        position=None,
        through=through_text(parse_lsn(confirmed)),
        epoch=1,
        source={"system_identifier": system.system_identifier, "timeline": system.timeline},
        windows={"orders": {"complete": True}},
    )
