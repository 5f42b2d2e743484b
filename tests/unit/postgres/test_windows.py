"""Tests windows, which publish the rows of tables among the changes of the log, on a simulated database.

In whatever order events come, no reader may see an older state after a newer one.
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
    """Lowers the limit of touched keys. Beyond it, windows drop the keys that they no longer need."""
    monkeypatch.setattr(windows_module, "_TOUCHED_ROWS_MAX", 2)


def test_no_state_goes_back_and_the_changelog_ends_as_the_table(seed: int) -> None:
    for number in range(150):
        run(seed + number, Windows)


# If the windows break one of their rules, the simulation must detect it


class _KeepsEverything(Windows):
    """Publishes all rows of a chunk, even those that changed after they were read."""

    def _untouched(self, entity: str, snapshot: Visibility, keys: pa.StringArray) -> Mask:
        return np.ones(len(keys), bool)


class _ByLogPosition(Windows):
    """Uses the rule of DBLog: drops a row if a change of its key is delivered after the chunk was read.

    The snapshot may have seen that change.
    """

    def reading(self, nonce: str, snapshot: Visibility, fingerprint: Fingerprint) -> bool:
        self._touched.clear()
        return super().reading(nonce, snapshot, fingerprint)

    def _untouched(self, entity: str, snapshot: Visibility, keys: pa.StringArray) -> Mask:
        everything = Snapshot(xmin=0, xmax=0, running=np.array([], np.int64))
        return super()._untouched(entity, everything, keys)


class _ByXmaxAlone(Windows):
    """Treats every transaction that began before the snapshot as visible, even if the transaction was still running."""

    def _untouched(self, entity: str, snapshot: Visibility, keys: pa.StringArray) -> Mask:
        assert isinstance(snapshot, Snapshot)
        plain = Snapshot(xmin=snapshot.xmin, xmax=snapshot.xmax, running=np.array([], np.int64))
        return super()._untouched(entity, plain, keys)


class _DoesNotWait(Windows):
    """Does not wait for transactions that were running when the service started.

    An earlier run of the service may have received their changes, although no snapshot sees these changes yet.
    """

    def reading(self, nonce: str, snapshot: Visibility, fingerprint: Fingerprint) -> bool:
        self._horizon = 0
        return super().reading(nonce, snapshot, fingerprint)


class _ForgetsTooMuch(Windows):
    """Forgets a key as soon as the latest snapshot sees its change, although older chunks may not be published yet."""

    def _forget(self) -> None:
        waiting = [chunk for chunk in self._chunks.values() if chunk.rows is not None]
        snapshots = [chunk.snapshot for chunk in waiting]
        for chunk in waiting:
            chunk.snapshot = self._latest
        super()._forget()
        for chunk, snapshot in zip(waiting, snapshots, strict=True):
            chunk.snapshot = snapshot


class _KeepsOldFiles(Windows):
    """Continues at the old page number after a table was rewritten."""

    def reading(self, nonce: str, snapshot: Visibility, fingerprint: Fingerprint) -> bool:
        progress = self._tables[ENTITY]
        assert isinstance(progress, TableProgress)
        stored = Fingerprint(fingerprint.signature, progress.leaves[LEAF].filenode)
        return super().reading(nonce, snapshot, stored)


@pytest.mark.parametrize(
    "broken", [_KeepsEverything, _ByLogPosition, _ByXmaxAlone, _DoesNotWait, _ForgetsTooMuch, _KeepsOldFiles]
)
def test_a_broken_rule_is_caught(broken: type[Windows], seed: int) -> None:
    def runs() -> None:
        for number in range(2000):
            run(seed + number, broken)

    with pytest.raises(StaleError):
        runs()
