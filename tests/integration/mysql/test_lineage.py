"""Tests how the source decides whether it can continue a changelog with the log of a server."""

from dataclasses import replace

import pytest

from changelog.connectors.servers.mysql import MysqlServer
from changelog.connectors.sources.mysql.admin.lineage import LogStart
from changelog.connectors.sources.mysql.session.address import Address
from changelog.connectors.sources.mysql.session.connection import Connection
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position


def test_a_server_that_lacks_a_partly_published_transaction_is_refused(
    mysql_server: MysqlServer, mysql_database: str
) -> None:
    """When a server fails, the service may have published a part of a transaction that the promoted replica has never
    received.
    """
    address = Address(host=mysql_server.host, port=mysql_server.port, user="root", password="", database=mysql_database)
    with Connection(address) as server:
        start = LogStart.trace(server.query, server.version, None, accept=False)
        checkpoint = Checkpoint(
            position=Position(start.epoch, start.through, 6),
            through=start.through_text,
            epoch=start.epoch,
            partial=True,
            source=start.source,
        )
        newest = start.received.text.rpartition(",")[2]
        head, separator, _ = newest.rpartition(":" if ":" in newest else "-")
        lost_gtid, present_gtid = (
            head + separator + number for number in (str(1 << 40), newest.replace("-", ":").rpartition(":")[2])
        )
        checkpoint_with_lost_half = replace(checkpoint, source={**start.source, "half": lost_gtid})
        with pytest.raises(ChangelogError, match=f"lacks transactions that are published: {lost_gtid}") as raised:
            LogStart.trace(server.query, server.version, checkpoint_with_lost_half, accept=False)
        assert raised.value.kind is Kind.DIVERGED
        checkpoint_with_present_half = replace(checkpoint, source={**start.source, "half": present_gtid})
        log_start = LogStart.trace(server.query, server.version, checkpoint_with_present_half, accept=False)
        assert log_start.half == (present_gtid, start.epoch, start.through)
