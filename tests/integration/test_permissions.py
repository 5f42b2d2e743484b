"""Tests that the files of the service, its commands and its jobs have the same permissions under every umask."""

import os
import stat
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from changelog.connectors import cli
from changelog.connectors.sinks.files.sink import FileSink
from changelog.spark_jobs.drift.report import Policy, finish, write
from changelog.spark_jobs.runner.metrics import write_metrics
from changelog.spark_jobs.storage import local_store, manifest
from tests.integration.bad_input import GUEST, ONE
from tests.integration.site import Site
from tests.unit.drift.reports import entity, report
from tests.unit.sinks.material import checkpoint, commit, store


@pytest.fixture(params=[0o000, 0o022, 0o077], autouse=True)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    """Returns the mode of everything in a folder, and of the folder itself as `.`."""
    return {
        path.relative_to(folder).as_posix(): stat.filemode(path.lstat().st_mode)
        for path in (folder, *folder.rglob("*"))
        if not path.is_symlink()
    }


def test_the_files_of_a_service_and_its_commands_have_fixed_modes(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(database, tmp_path)
    site.sql(GUEST)
    monkeypatch.setenv("DATABASE_URL", database)
    project = tmp_path / "project"
    project.mkdir()
    assert cli.main(["init", "--config", str(project / "changelog.toml"), "--name", site.name]) == 0
    assert {name: mode for name, mode in modes(project).items() if name != "."} == {
        "changelog.toml": "-rw-r-----",
        "schemas": "drwxr-xr-x",
        "schemas/guest.avsc": "-rw-r--r--",
    }
    site.configure(ONE, path="deep/log")
    with site.running() as running:
        running.until(lambda: any((tmp_path / "deep").rglob("*.parquet")))
    deep_modes = modes(tmp_path / "deep")
    assert {mode for mode in deep_modes.values() if mode.startswith("d")} == {"drwxr-x---"}
    assert {mode for mode in deep_modes.values() if mode.startswith("-")} == {"-rw-r-----"}
    assert any(name.endswith(".parquet") for name in deep_modes)


def test_the_sink_keeps_the_mode_of_a_folder_that_exists(tmp_path: Path) -> None:
    """An operator may have set the mode in order to grant or deny access to a group, or to another user's service."""
    folder = tmp_path / "log"
    folder.mkdir()
    folder.chmod(0o701)
    with closing(FileSink(folder)) as sink:
        sink.recover()
        store(sink, commit(1), checkpoint(1))
    assert modes(folder)["."] == "drwx-----x"


def test_the_folder_for_files_that_are_set_aside_has_a_fixed_mode(tmp_path: Path) -> None:
    with closing(FileSink(tmp_path / "log")) as sink:
        sink.recover()
    (tmp_path / "log" / "log" / "strange").touch()
    with closing(FileSink(tmp_path / "log")) as sink:
        sink.recover()
    assert modes(tmp_path / "log")["aside"] == "drwxr-x---"


def test_files_that_a_job_writes_itself_have_fixed_modes(tmp_path: Path) -> None:
    """Files that Spark writes for a job are not tested, because Hadoop's setting `fs.permissions.umask-mode` determines
    their permissions.
    """
    drift_report = report(1, {"order": entity(changed=1)})
    write(tmp_path / "reports", finish(drift_report, {"order": Policy()}, [], folder=tmp_path / "reports"))
    folder_modes = modes(tmp_path / "reports")
    assert {mode for mode in folder_modes.values() if mode.startswith("d")} == {"drwxr-x---"}
    assert {mode for name, mode in folder_modes.items() if name.endswith(("json", "html"))} == {"-rw-r-----"}
    write_metrics(tmp_path / "job.prom", {"job": "archive", "verdict": "done"})
    assert modes(tmp_path)["job.prom"] == "-rw-r--r--"
    manifest.commit(local_store.local(tmp_path / "archive"), lambda before: before, at=datetime.now(UTC))
    folder_modes = modes(tmp_path / "archive")
    assert {mode for mode in folder_modes.values() if mode.startswith("d")} == {"drwxr-xr-x"}
    assert {mode for mode in folder_modes.values() if mode.startswith("-")} == {"-rw-r--r--"}
