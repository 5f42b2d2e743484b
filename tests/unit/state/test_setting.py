"""Tests `[state]` in the configuration: where its folder is, and the one-line errors for settings that are refused."""

import importlib.util
import sys
from pathlib import Path

import pytest

from changelog.connectors import config
from changelog.connectors.commands.check import state_findings
from changelog.connectors.config import Config
from changelog.connectors.wiring.state import open_state
from changelog.envelope.errors import ChangelogError, Kind

HEAD = """
name = "booking"
source = { kind = "postgres", dsn = "dbname=app" }
tables = { include = ["*"] }
"""
FILES = '[sink]\npath = "log"\n'
KAFKA = '[sink]\nkind = "kafka"\nbootstrap_servers = "127.0.0.1:1"\n'
STATE = '[state]\npath = "state"\n'


def loaded(folder: Path, rest: str) -> Config:
    (folder / "changelog.toml").write_text(HEAD + rest, "utf-8")
    return config.load(folder / "changelog.toml", {})


def refusal(folder: Path, rest: str) -> str:
    with pytest.raises(ChangelogError) as caught:
        loaded(folder, rest)
    return str(caught.value)


def test_without_the_section_there_is_no_state(tmp_path: Path) -> None:
    assert open_state(loaded(tmp_path, FILES)) is None
    assert not (tmp_path / "state").exists()


def test_the_folder_is_beside_the_configuration_and_belongs_to_the_changelog(tmp_path: Path) -> None:
    state = open_state(loaded(tmp_path, FILES + STATE))
    assert state is not None
    with pytest.raises(ChangelogError) as caught:
        open_state(loaded(tmp_path, FILES + STATE))
    assert caught.value.kind is Kind.IN_USE
    state.close()
    with pytest.raises(ChangelogError) as caught:
        open_state(loaded(tmp_path, KAFKA + STATE))
    assert f"another changelog: booking in files {tmp_path}/log" in caught.value.message


def test_the_folder_is_required(tmp_path: Path) -> None:
    assert "state.path: is missing" in refusal(tmp_path, FILES + "[state]\n")


@pytest.mark.parametrize("envelope", ["debezium", "flat"])
def test_another_envelope_is_refused(tmp_path: Path, envelope: str) -> None:
    line = refusal(tmp_path, f'{KAFKA}envelope = "{envelope}"\n{STATE}')
    assert line.endswith(f'state: cannot be restored from messages of envelope = "{envelope}"; leave [state] out')


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    monkeypatch.delitem(sys.modules, "changelog.connectors.state.rocks", raising=False)
    with pytest.raises(ChangelogError) as caught:
        open_state(loaded(tmp_path, FILES + STATE))
    assert caught.value.kind is Kind.USAGE
    assert caught.value.message == "[state] is set, and rocksdict is not installed"
    assert "[state]" in str(caught.value.hint)


def test_check_tells_whether_the_state_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [finding] = state_findings(tmp_path / "state")
    assert (finding.name, finding.status) == ("state", "ok")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    [finding] = state_findings(tmp_path / "state")
    assert (finding.status, finding.message) == ("fail", "[state] is set, and rocksdict is not installed")
