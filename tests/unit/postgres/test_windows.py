"""Windows on a simulated database: in any order of events, no reader sees an older state after a newer one."""

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
    """Lowers the number of touched keys that windows keep before they drop those that they no longer need."""
    monkeypatch.setattr(windows_module, "_KEPT_ROWS_MAX", 2)


def test_no_state_goes_back_and_the_changelog_ends_as_the_table(seed: int) -> None:
    for number in range(150):
        run(seed + number, Windows)


# If one rule of the windows is broken, the simulation must detect it


class _KeepsEverything(Windows):
    """Publishes all rows of a chunk, even those that changed after they were read."""

    def _untouched(self, entity: str, snapshot: Visibility, keys: pa.StringArray) -> Mask:
        return np.ones(len(keys), bool)


class _ByLogPosition(Windows):
    """DBLog's rule: drops the rows whose keys were delivered after the chunk was read, whatever the snapshot saw."""

    def reading(self, nonce: str, snapshot: Visibility, fingerprint: Fingerprint) -> bool:
        self._touched.clear()
        return super().reading(nonce, snapshot, fingerprint)

    def _untouched(self, entity: str, snapshot: Visibility, keys: pa.StringArray) -> Mask:
        everything = Snapshot(xmin=0, xmax=0, running=np.array([], np.int64))
        return super()._untouched(entity, everything, keys)


class _ByXmaxAlone(Windows):
    """Takes every transaction that began before the snapshot as visible, even if it was still running."""

    def _untouched(self, entity: str, snapshot: Visibility, keys: pa.StringArray) -> Mask:
        assert isinstance(snapshot, Snapshot)
        plain = Snapshot(xmin=snapshot.xmin, xmax=snapshot.xmax, running=np.array([], np.int64))
        return super()._untouched(entity, plain, keys)


class _DoesNotWait(Windows):
    """Reads although transactions are running that an earlier run of the service may have received."""

    def reading(self, nonce: str, snapshot: Visibility, fingerprint: Fingerprint) -> bool:
        self._horizon = 0
        return super().reading(nonce, snapshot, fingerprint)


class _ForgetsTooMuch(Windows):
    """Forgets keys whose changes the latest snapshot sees, although chunks with older snapshots are not published."""

    def _forget(self) -> None:
        waiting = [chunk for chunk in self._chunks.values() if chunk.rows is not None]
        snapshots = [chunk.snapshot for chunk in waiting]
        for chunk in waiting:
            chunk.snapshot = self._latest
        super()._forget()
        for chunk, snapshot in zip(waiting, snapshots, strict=True):
            chunk.snapshot = snapshot


class _KeepsOldFiles(Windows):
    """Continues at the old page numbers after a table was rewritten."""

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
