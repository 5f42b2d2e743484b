"""Tests windows, which publish the rows of tables among the changes of the log. The tests simulate a database.

In whatever order things happen, the changelog must not have an older state of a key after a newer one.
"""

import numpy as np
import pyarrow as pa
import pytest

from changelog.connectors.capture.tables import windows as windows_module
from changelog.connectors.capture.tables.windows import Visibility, Windows
from changelog.connectors.sources.postgres.snapshot.page_progress import (
    Fingerprint,
    TableProgress,
)
from changelog.connectors.sources.postgres.snapshot.visibility import Snapshot
from tests.unit.postgres.window_simulation import ENTITY, LEAF, Mask, StaleError, run


@pytest.fixture(autouse=True)
def _low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows remember which keys changed. If the number of these keys exceeds a limit, windows forget the keys that
    are no longer needed. Lowers this limit, so that windows often forget keys.
    """
    monkeypatch.setattr(windows_module, "_TOUCHED_ROWS_MAX", 2)


def test_no_older_state_follows_a_newer_one_and_the_changelog_ends_like_the_table(seed: int) -> None:
    for number in range(150):
        run(seed + number, Windows)


# If the windows break one of their rules, the simulation must detect it


class _KeepsEverything(Windows):
    """Publishes all rows of a chunk, even rows that changed after they were read."""

    def _untouched(self, entity: str, snapshot: Visibility, keys: pa.StringArray) -> Mask:
        return np.ones(len(keys), bool)


class _ByLogPosition(Windows):
    """Uses the rule of DBLog: leaves out a row only if a change of its key is delivered after the chunk's snapshot was
    taken. This is not enough: a commit is in the log before it is visible. So a change may be delivered before the
    snapshot is taken, and the snapshot may still not see it.
    """

    def reading(self, nonce: str, snapshot: Visibility, fingerprint: Fingerprint) -> bool:
        self._touched.clear()
        return super().reading(nonce, snapshot, fingerprint)

    def _untouched(self, entity: str, snapshot: Visibility, keys: pa.StringArray) -> Mask:
        everything = Snapshot(xmin=0, xmax=0, running=np.array([], np.int64))
        return super()._untouched(entity, everything, keys)


class _ByXmaxAlone(Windows):
    """Regards as visible every transaction that began before the snapshot, even if it was still running then."""

    def _untouched(self, entity: str, snapshot: Visibility, keys: pa.StringArray) -> Mask:
        assert isinstance(snapshot, Snapshot)
        plain = Snapshot(xmin=snapshot.xmin, xmax=snapshot.xmax, running=np.array([], np.int64))
        return super()._untouched(entity, plain, keys)


class _DoesNotWait(Windows):
    """Does not wait until snapshots see the transactions that were running when the service started.

    An earlier run of the service may have published their changes, although no snapshot sees these changes yet.
    """

    def reading(self, nonce: str, snapshot: Visibility, fingerprint: Fingerprint) -> bool:
        self._horizon = 0
        return super().reading(nonce, snapshot, fingerprint)


class _ForgetsTooMuch(Windows):
    """Forgets a key as soon as the latest snapshot sees its change. But an older chunk, whose snapshot does not see the
    change, may still be waiting to be published.
    """

    def _forget(self) -> None:
        waiting = [chunk for chunk in self._chunks.values() if chunk.rows is not None]
        snapshots = [chunk.snapshot for chunk in waiting]
        for chunk in waiting:
            chunk.snapshot = self._latest
        super()._forget()
        for chunk, snapshot in zip(waiting, snapshots, strict=True):
            chunk.snapshot = snapshot


class _KeepsOldFiles(Windows):
    """Continues to read a table at the same page number after the table was rewritten."""

    def reading(self, nonce: str, snapshot: Visibility, fingerprint: Fingerprint) -> bool:
        progress = self._tables[ENTITY]
        assert isinstance(progress, TableProgress)
        stored = Fingerprint(fingerprint.signature, progress.leaves[LEAF].filenode)
        return super().reading(nonce, snapshot, stored)


@pytest.mark.parametrize(
    "broken", [_KeepsEverything, _ByLogPosition, _ByXmaxAlone, _DoesNotWait, _ForgetsTooMuch, _KeepsOldFiles]
)
def test_the_simulation_detects_windows_that_break_a_rule(broken: type[Windows], seed: int) -> None:
    def runs() -> None:
        for number in range(2000):
            run(seed + number, broken)

    with pytest.raises(StaleError):
        runs()
