"""Warns of prepared XA transactions for which the reading of tables waits.

The service does not know whether the commit of such an *orphan* is under way, because the stream does not have its XA
PREPARE and will not read it any more. Tables are read only after somebody has ended the transaction.
"""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import structlog

from changelog.connectors.sources.mysql.decode.events.events import XaId

LOG_AGAIN_S: Final = (10.0, 300.0)
"""How many seconds pass before the first warning, and at most between two warnings. Each pause is twice as long as the
one before.
"""

PAUSED_S: Final = 60.0
"""After how many seconds without a call a wait is a new one, because tables were not to be read meanwhile."""

NAMED_MAX: Final = 3
"""How many transactions a warning names."""

_log = structlog.get_logger("mysql")


class Orphans:
    """Remembers since when table reads wait, and warns at a limited rate."""

    def __init__(self) -> None:
        self._since: datetime | None = None
        self._called_at, self._log_at, self._log_again_s = 0.0, 0.0, LOG_AGAIN_S[0]

    def wait_for(self, xa_ids: Sequence[XaId]) -> None:
        """Records that table reads wait for these orphans now; for none if `xa_ids` is empty."""
        now, called_at = time.monotonic(), self._called_at
        self._called_at = now
        if not xa_ids:
            self._since = None
            return
        if self._since is None or now - called_at > PAUSED_S:
            self._since = datetime.now(UTC)
            self._log_at, self._log_again_s = now + LOG_AGAIN_S[0], LOG_AGAIN_S[0]
        if now < self._log_at:
            return
        self._log_again_s = min(2 * self._log_again_s, LOG_AGAIN_S[1])
        self._log_at = now + self._log_again_s
        _log.warning(
            "table reads wait for prepared XA transactions",
            transactions=[literal(xa_id) for xa_id in xa_ids[:NAMED_MAX]],
            count=len(xa_ids),
            since=self._since.isoformat(timespec="seconds"),
            hint="end them: XA COMMIT or XA ROLLBACK, followed by the id",
        )


def literal(xa_id: XaId) -> str:
    """Returns an id as a statement can name it, such as `'abc'`, `'abc','d',7` or `X'00ff'`. It is printable ASCII."""
    parts = [_text(xa_id.gtrid)]
    if xa_id.bqual or xa_id.format_id != 1:
        parts.append(_text(xa_id.bqual))
    if xa_id.format_id != 1:
        parts.append(str(xa_id.format_id))
    return ",".join(parts)


def _text(data: bytes) -> str:
    is_plain = data.isascii() and data.decode().isprintable() and not {*b"'\\"} & {*data}
    return f"'{data.decode()}'" if is_plain else f"X'{data.hex()}'"
