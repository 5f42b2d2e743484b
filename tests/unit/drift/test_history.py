"""Tests the history of drifted keys over several runs.

A drifted key is first *open*. After a repair it is *republished*. If the next comparison finds no drift of the key, it
is *verified*.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.envelope.errors import ChangelogError, Kind
from changelog.spark_jobs.drift.report import Policy, finish, keys, read_earlier, repaired, write
from tests.unit.drift.reports import entity, night, put_keys, report, skipped

A, B, C = ("order", "1"), ("order", "2"), ("order", "3")


def key_counts(finished: dict[str, Any]) -> tuple[int, int, int]:
    history = finished["entities"]["order"]["history"]
    return history["open"], history["republished"], history["verified"]


def drift(run: int, changed: int) -> dict[str, Any]:
    return report(run, {"order": entity(changed=changed)})


def test_a_key_is_open_then_republished_then_verified(tmp_path: Path) -> None:
    finished = night(tmp_path, drift(1, 2), [A, B])
    assert key_counts(finished) == (2, 0, 0)
    finished = repaired(finished, "order", ["3f2a-1"], "2026-11-01T03:10:15Z")
    assert key_counts(finished) == (0, 2, 0)
    write(tmp_path, finished)
    finished = night(tmp_path, drift(2, 0))
    assert key_counts(finished) == (0, 0, 2)
    assert finished["entities"]["order"]["history"]["firstSeen"] is None


def test_a_repair_that_did_not_hold_is_open_again(tmp_path: Path) -> None:
    finished = night(tmp_path, drift(1, 2), [A, B])
    write(tmp_path, repaired(finished, "order", ["3f2a-1"], "2026-11-01T03:10:15Z"))
    finished = night(tmp_path, drift(2, 1), [A])
    assert key_counts(finished) == (1, 0, 1)
    assert finished["entities"]["order"]["history"]["firstSeen"] == "2026-11-01T03:10:00Z"


def test_first_seen_is_the_night_of_the_oldest_drift_that_is_still_open(tmp_path: Path) -> None:
    night(tmp_path, drift(1, 1), [A])
    night(tmp_path, drift(2, 2), [B, C])
    finished = night(tmp_path, drift(3, 2), [A, C])  # A did not drift in run 2, so its drift began in run 3
    assert key_counts(finished) == (2, 0, 1)
    assert finished["entities"]["order"]["history"]["firstSeen"] == "2026-11-02T03:10:00Z"


@pytest.mark.parametrize(
    "unknown",
    [
        report(2, {"order": skipped(why="not caught up")}, verdict="not caught up"),
        report(2, {"order": entity(sampled="1 % of the keys")}),
        report(2, {"order": entity(why="2 keys could not be compared")}),
        report(2, {}),
    ],
)
def test_a_run_that_compared_only_a_part_verifies_nothing(tmp_path: Path, unknown: dict[str, Any]) -> None:
    finished = night(tmp_path, drift(1, 2), [A, B])
    write(tmp_path, repaired(finished, "order", ["3f2a-1"], "2026-11-01T03:10:15Z"))
    finished = night(tmp_path, unknown)
    if finished["entities"]:
        assert key_counts(finished) == (0, 2, 0)
        assert finished["entities"]["order"]["history"]["firstSeen"] == "2026-11-01T03:10:00Z"
    assert key_counts(night(tmp_path, drift(3, 0))) == (0, 0, 2)


def test_keys_of_different_entities_are_kept_apart(tmp_path: Path) -> None:
    entities = {"guest": entity(changed=1), "order": entity(changed=1)}
    finished = night(tmp_path, report(1, entities), [("guest", "1"), ("order", "1")])
    finished = night(tmp_path, report(2, {"guest": entity(), "order": entity(changed=1)}), [("order", "1")])
    counts = {name: entity_report["history"]["verified"] for name, entity_report in finished["entities"].items()}
    assert counts == {"guest": 1, "order": 0}


def test_deleted_files_of_keys_are_ignored(tmp_path: Path) -> None:
    first_run = drift(1, 2)
    night(tmp_path, first_run, [A, B])
    (tmp_path / first_run["run"]["id"] / "keys.jsonl").unlink()
    assert key_counts(night(tmp_path, drift(2, 1), [A])) == (1, 0, 0)


def test_the_history_and_the_trend_cover_thirty_runs(tmp_path: Path) -> None:
    for run in range(1, 31):
        finished = night(tmp_path, drift(run, 1 if run <= 2 else 0), [A] if run <= 2 else [])
    assert key_counts(finished) == (0, 0, 1)
    assert len(finished["entities"]["order"]["trend"]) == 30
    later = {**drift(30, 0), "run": {**finished["run"], "id": "20261201T031000Z-3f2a"}}
    finished = night(tmp_path, later)
    assert key_counts(finished) == (0, 0, 1)
    trend = finished["entities"]["order"]["trend"]
    assert (len(trend), trend[0]["changed"], trend[1]["changed"]) == (30, 1, 0)
    finished = night(tmp_path, {**later, "run": {**finished["run"], "id": "20261202T031000Z-3f2a"}})
    assert key_counts(finished) == (0, 0, 0)


def test_without_a_folder_the_history_comes_from_the_reports() -> None:
    finished = finish(drift(1, 3), {}, [])
    assert finished["entities"]["order"]["history"] == {
        "open": 3,
        "republished": 0,
        "verified": 0,
        "firstSeen": "2026-11-01T03:10:00Z",
    }


def test_old_runs_with_too_large_files_of_keys_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    night(tmp_path, drift(1, 1), [A])
    finished = night(tmp_path, drift(2, 1), [A])
    assert finished["entities"]["order"]["history"]["firstSeen"] == "2026-11-01T03:10:00Z"
    size = (tmp_path / finished["run"]["id"] / "keys.jsonl").stat().st_size
    monkeypatch.setattr(keys, "BYTES_MAX", 2 * size)
    finished = night(tmp_path, drift(3, 1), [A])
    assert finished["entities"]["order"]["history"]["firstSeen"] == "2026-11-02T03:10:00Z"
    monkeypatch.setattr(keys, "BYTES_MAX", 1)
    assert key_counts(night(tmp_path, drift(4, 1), [A])) == (1, 0, 0)


@settings(deadline=None)
@given(st.lists(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.text(max_size=3))), max_size=4), st.integers(1, 5))
def test_merged_keys_say_which_files_have_them(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[tuple[str, str]]], chunk: int
) -> None:
    folder = tmp_path_factory.mktemp("keys")
    paths = []
    for number, lines in enumerate(files):
        path = folder / str(number)
        path.write_text("".join(json.dumps({"entity": name, "key": key}) + "\n" for name, key in lines))
        paths.append(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "CHUNK_KEYS", chunk)
        merged = list(keys.merged(paths))
    pairs = {pair for lines in files for pair in lines}
    expected = {pair: sum(1 << number for number, lines in enumerate(files) if pair in lines) for pair in pairs}
    assert merged == sorted(expected.items())


def test_a_damaged_file_of_keys_is_named_with_its_line(tmp_path: Path) -> None:
    run_report = drift(1, 1)
    put_keys(tmp_path, run_report, [A])
    file = tmp_path / run_report["run"]["id"] / "keys.jsonl"
    file.write_bytes(file.read_bytes() + b'{"entity": "ord')
    with pytest.raises(ChangelogError) as caught:
        finish(run_report, {"order": Policy()}, read_earlier(tmp_path), folder=tmp_path)
    assert caught.value.kind is Kind.MALFORMED
    assert caught.value.message == f"{file}: line 2 is not a drifted key"
