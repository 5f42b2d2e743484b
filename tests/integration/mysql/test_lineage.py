"""Tests, on real servers, whether a server's log continues a changelog."""

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
    """A replica may be promoted before it has received the whole of a transaction that the service was reading."""
    address = Address(host=mysql_server.host, port=mysql_server.port, user="root", password="", database=mysql_database)
    with Connection(address) as server:
        new = LogStart.trace(server.query, server.version, None, accept=False)
        stored = Checkpoint(
            position=Position(new.epoch, new.through, 6),
            through=new.through_text,
            epoch=new.epoch,
            partial=True,
            source=new.source,
        )
        newest = new.received.text.rpartition(",")[2]
        head, separator, _ = newest.rpartition(":" if ":" in newest else "-")
        lost, present = (
            head + separator + number for number in (str(1 << 40), newest.replace("-", ":").rpartition(":")[2])
        )
        lacking = replace(stored, source={**new.source, "half": lost})
        with pytest.raises(ChangelogError, match=f"lacks transactions that are published: {lost}") as refused:
            LogStart.trace(server.query, server.version, lacking, accept=False)
        assert refused.value.kind is Kind.DIVERGED
        traced = LogStart.trace(
            server.query, server.version, replace(stored, source={**new.source, "half": present}), accept=False
        )
        assert traced.half == (present, new.epoch, new.through)
