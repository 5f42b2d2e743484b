"""Tests how commands find out whether a service reads the replication slot.

A service that opens its source again does not read the slot for some seconds. It must still count as the slot's reader.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from changelog.connectors.commands import signalling
from changelog.connectors.config import Config
from changelog.connectors.sources import Hold

FREE = Hold(name="app", reader=None, condition="reserved", is_lost=False, confirmed="0/1", nbytes=None, xids=None)
READ = replace(FREE, reader=7)


class Slot:
    """A database with a slot. The calls of `hold` return `states` in order, and then the last state again and again."""

    def __init__(self, *states: Hold | None) -> None:
        self._states: Sequence[Hold | None] = states
        self.calls = 0

    def hold(self) -> Hold | None:
        self.calls += 1
        return self._states[min(self.calls, len(self._states)) - 1]


def is_read(monkeypatch: pytest.MonkeyPatch, slot: Slot) -> bool:
    monkeypatch.setattr(signalling, "database", lambda settings: slot)
    monkeypatch.setattr(signalling, "RECHECK_S", 0.0)
    return signalling._is_read(Config.model_construct())


def test_a_service_that_opens_its_source_slowly_counts_as_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_read(monkeypatch, Slot(*[FREE] * 10, READ))


def test_a_slot_that_stays_free_is_read_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signalling, "REOPENING_S", 0.0)
    assert not is_read(monkeypatch, Slot(FREE))


def test_a_missing_slot_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    slot = Slot(None)
    assert not is_read(monkeypatch, slot)
    assert slot.calls == 1
