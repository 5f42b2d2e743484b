"""Tests that `changelog run --over-gap` continues the changelog after each kind of gap.

A gap is a span of the log whose changes were lost before they could be published. After the command, the changelog must
equal its table again. The operator only has to confirm the command. A *fail point* is a named line of the service's
code at which a test can kill the service.
"""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from changelog.connectors.servers.postgres import PostgresServer, temporary_server
from changelog.connectors.servers.unprivileged import give_away
from changelog.connectors.sinks.files.layout import log_file, sequences
from changelog.connectors.sinks.files.log import FileLog, read_checkpoint, read_log
from changelog.connectors.sinks.files.sink import FileSink
from changelog.connectors.sources.postgres import watch
from changelog.connectors.sources.postgres.crossing import FAIL_POINTS
from changelog.connectors.sources.postgres.values.lsn import parse_lsn, through_lsn
from changelog.connectors.wiring.sinks import read_gaps
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.errors import OVER_GAP, ChangelogError
from changelog.envelope.gap import Gap
from changelog.envelope.position import Position
from tests.campaigns import gap as gap_campaign
from tests.campaigns._consumer import ENTITY, TABLE, Consumer, Writer, check_order, table
from tests.campaigns._pieces import run
from tests.campaigns._service import Service, is_read
from tests.integration.site import Site
from tests.patience import PATIENCE_S
from tests.servers import SETTINGS, fresh_database, lose_log


class World:
    """A service that publishes one table, a writer of this table, and a consumer that has read all messages before the
    gap.
    """

    def __init__(self, dsn: str, folder: Path, seed: int) -> None:
        self.site = Site(dsn, folder)
        self.site.sql(TABLE, "ALTER TABLE guest REPLICA IDENTITY FULL")
        self.site.configure(ENTITY)
        self.service = Service(self.site.config)
        self.writer, self.consumer = Writer(dsn, seed), Consumer()

    def begin(self) -> None:
        """Publishes the table and several commits of changes, and stops the service."""
        self.writer.write(20)
        with self.site.running() as running:
            running.until(self.site.is_read)
            for _ in range(3):
                self.writer.write(5)
                running.until(lambda: self._consumed())
        assert self.consumer.states == table(self.site.dsn)

    def _consumed(self) -> bool:
        self.consumer.take(read_log(self.site.log, entity="guest"))
        return self.consumer.states == table(self.site.dsn)

    def cross_gap(self, capsys: pytest.CaptureFixture[str], reason: str, *crashes: str) -> Gap:
        """Checks that the service refuses to start. Then continues over the gap while rows are written, and returns the
        gap.

        `changelog run --over-gap` only shows the gap. With `--yes`, it also runs the service. The test kills the
        service at each fail point in `crashes`, and starts it again.
        """
        line = self.site.refused()
        assert reason in line
        assert line.endswith(OVER_GAP)
        position, slot = self._stored_position(), self._slot()
        assert self.site.call("run", "--over-gap")[0] == 1
        output = capsys.readouterr().out
        assert reason in output
        assert output.splitlines()[-1] == "nothing is changed; to go on: changelog run --over-gap --yes"
        assert (self._stored_position(), self._slot()) == (position, slot)
        self.writer.start()
        try:
            for point in crashes:
                self.service.start(point, "--over-gap", "--yes")
                assert self.service.wait(PATIENCE_S), f"{point} was not reached: {self.service.said()[-2000:]}"
            if "gap:stored" not in crashes:
                self.service.start(None, "--over-gap", "--yes")
                self.service.until(self.site.log, lambda checkpoint: checkpoint.epoch > 1, PATIENCE_S)
                self.service.kill()
            self.service.start()
            self.service.until(self.site.log, _is_repaired, PATIENCE_S)
        finally:
            self.writer.stop()
        return self.judge()

    def judge(self) -> Gap:
        """Lets the service publish all changes, and stops it. Checks that changelog, consumer and table agree.

        Returns the newest gap of the changelog.
        """
        with psycopg.connect(self.site.dsn) as connection:
            [(end,)] = connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::int8").fetchall()
        self.site.sql("INSERT INTO guest VALUES (-1, 'last', 0)")
        self.service.until(self.site.log, lambda checkpoint: through_lsn(checkpoint) > end, PATIENCE_S)
        self.service.stop()
        expected = table(self.site.dsn)
        check_order(read_log(self.site.log, entity="guest"))
        new_consumer = Consumer()
        new_consumer.take(read_log(self.site.log, entity="guest"))
        assert new_consumer.states == expected
        self.consumer.take(read_log(self.site.log, entity="guest"))
        assert self.consumer.states == expected
        return Gap.parse(read_gaps(FileLog(self.site.log))[-1].envelope.current or b"")

    def _stored_position(self) -> Position | None:
        with contextlib.suppress(ChangelogError):
            checkpoint = read_checkpoint(self.site.log)
            return None if checkpoint is None else checkpoint.position
        return None

    def _slot(self) -> list[tuple[object, ...]]:
        return self.site.sql(
            "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = current_database()"
        )


def _is_repaired(checkpoint: Checkpoint) -> bool:
    return is_read(checkpoint) and not checkpoint.repairs.get("open")


@pytest.fixture
def world(database: str, tmp_path: Path, seed: int) -> Iterator[World]:
    new_world = World(database, tmp_path, seed)
    new_world.begin()
    yield new_world
    new_world.service.kill()
    new_world.writer.stop()


def drop_slot(world: World) -> None:
    world.site.sql(f"SELECT pg_drop_replication_slot('{world.site.name}')")


@pytest.mark.parametrize("point", FAIL_POINTS)
def test_after_a_crash_at_any_step_the_command_can_be_run_again(
    world: World, capsys: pytest.CaptureFixture[str], point: str
) -> None:
    drop_slot(world)
    world.writer.write(10)
    gap = world.cross_gap(capsys, "no longer exists, although the changelog was begun with it", point)
    assert (gap.before.epoch, gap.after.epoch) == (1, 2)
    assert gap.before.committed_at is not None
    assert gap.entities == ("guest",)
    if point == FAIL_POINTS[0]:
        check_commands(world, capsys, gap)


def check_commands(world: World, capsys: pytest.CaptureFixture[str], gap: Gap) -> None:
    """Checks that `tail`, `history` and `status` report the gap, and that `run --over-gap` finds no other gap."""
    key = next(read_log(world.site.log, entity="guest")).column("key")[0].as_py()
    capsys.readouterr()
    for words, count in (
        (("history", "guest", "-1"), 0),
        (("history", "guest", key), 1),
        (("tail", "-n", "1000000", "--no-follow"), 1),
        (("tail", "gaps", "--no-follow"), 1),
    ):
        assert world.site.call(*words) == (0, [])
        assert capsys.readouterr().out.count("changes were lost") == count, words
    assert world.site.call("history", "gaps", gap.name, str(gap.after.epoch), "--json") == (0, [])
    message = json.loads(capsys.readouterr().out)
    assert message["value"]["current"]["reason"] == gap.reason
    assert world.site.call("status", "--json") == (0, [])
    assert json.loads(capsys.readouterr().out)["entities"]["gaps"] == {"create": 1}
    assert world.site.call("run", "--over-gap") == (0, [])
    assert "there is no gap" in capsys.readouterr().out


def move_slot(world: World) -> None:
    world.writer.write(5)
    world.site.sql(f"SELECT pg_replication_slot_advance('{world.site.name}', pg_current_wal_lsn())")


def lose_slot(world: World) -> None:
    lose_log(world.site.dsn, world.site.name)


def drop_publication(world: World) -> None:
    world.site.sql(f"DROP PUBLICATION {world.site.name}")


def hide_publication(world: World) -> None:
    """Drops the publication, writes rows, and creates the publication again. PostgreSQL cannot send the changes of
    these rows, because there was no publication when they were written.
    """
    create = f"CREATE PUBLICATION {world.site.name} FOR TABLE guest WITH (publish_via_partition_root = true)"
    world.site.sql(f"DROP PUBLICATION {world.site.name}")
    world.writer.write(5)
    world.site.sql(create)


def delete_newest_file(world: World) -> None:
    log_file(world.site.log, sequences(world.site.log)[-1]).unlink()


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def cut_newest_file(world: World) -> None:
    cut(log_file(world.site.log, sequences(world.site.log)[-1]))


def cut_two_files(world: World) -> None:
    for sequence in sequences(world.site.log)[-2:]:
        cut(log_file(world.site.log, sequence))


def delete_all_files(world: World) -> None:
    """Deletes all log files. The position in the sink's resume file still shows that there were log files."""
    with closing(FileSink(world.site.log)) as sink:
        checkpoint = sink.recover()
        assert checkpoint is not None
        sink.commit(checkpoint)
    for sequence in sequences(world.site.log):
        log_file(world.site.log, sequence).unlink()


@pytest.mark.parametrize(
    ("damage", "reason", "point"),
    [
        (move_slot, "the slot has moved to", "gap:slot-made"),
        (lose_slot, "has lost its log", "gap:slot-dropped"),
        (drop_publication, "no longer exists, although the changelog was begun with it", "gap:slot-made"),
        (hide_publication, "the publication did not exist at this point of the log", "gap:slot-dropped"),
        (delete_newest_file, "the slot has moved to", "gap:taken-over"),
        (cut_newest_file, "the slot has moved to", "files:set-aside"),
        (cut_two_files, "and the log file after it is not whole either", "files:set-aside"),
        (delete_all_files, "follows a log file that is gone or damaged", "gap:slot-made"),
    ],
)
def test_the_service_continues_after_each_kind_of_damage(
    world: World,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[World], None],
    reason: str,
    point: str,
) -> None:
    aside = world.site.log / "aside"
    damage(world)
    world.writer.write(5)
    gap = world.cross_gap(capsys, reason, point, "gap:claimed")
    assert gap.after.epoch > 1
    cut_files = {"cut_newest_file": 1, "cut_two_files": 2}.get(damage.__name__, 0)
    assert len(list(aside.iterdir()) if aside.is_dir() else []) == cut_files, (
        "damaged files are moved aside, not deleted"
    )


def test_dropping_the_publication_stops_a_running_service_with_the_same_error_as_a_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "READ_INTERVAL_S", 0.1)
    with world.site.running() as running:
        running.until(lambda: running.said("streaming"))
        drop_publication(world)
        error = running.ended()
    assert str(error).endswith(OVER_GAP)
    assert world.site.refused() == str(error)


def test_a_slot_that_moved_loses_only_the_changes_that_it_skipped(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    move_slot(world)
    world.site.sql("UPDATE guest SET name = 'x'", "UPDATE guest SET name = 'y'")
    gap = world.cross_gap(capsys, "the slot has moved to")
    names = [
        message["value"]["current"]["name"] for message in world.site.messages("guest") if message["value"]["current"]
    ]
    assert {"x", "y"} <= set(names)
    assert gap.before.through != gap.after.through


@pytest.fixture
def other_server(starts_servers: None) -> Iterator[PostgresServer]:
    with temporary_server(settings=SETTINGS) as server:
        yield server


def test_the_service_continues_with_another_cluster(
    world: World, other_server: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with fresh_database(other_server) as dsn:
        world.writer, original_dsn = Writer(dsn, 5), world.site.dsn
        world.site.dsn = dsn
        world.site.sql(TABLE, "ALTER TABLE guest REPLICA IDENTITY FULL")
        world.writer.write(10)
        world.site.configure(ENTITY, dsn=dsn)
        gap = world.cross_gap(capsys, "but the changelog comes from cluster", "gap:slot-made")
        assert gap.before.system != gap.after.system
        assert world.site.call("drop", "--slot", "--yes")[0] == 0
        world.site.dsn = original_dsn


def test_the_service_continues_after_the_server_was_restored(
    other_server: PostgresServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Restoring the server also moves its slot back, to a position before the last published change."""
    with fresh_database(other_server) as dsn:
        world = World(dsn, tmp_path, 7)
        world.begin()
        other_server.stop()
        copy = tmp_path / "copy"
        shutil.copytree(other_server.data_dir, copy)
        other_server.start()
        with world.site.running() as running:
            world.site.sql(*["SELECT pg_switch_wal()"] * 4)  # makes the log longer than it will be after the restore
            world.writer.write(50)
            running.until(lambda: world._consumed())
        other_server.stop()
        for entry in other_server.data_dir.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        shutil.copytree(copy, other_server.data_dir, dirs_exist_ok=True)
        for entry in other_server.data_dir.rglob("*"):
            give_away(entry)
        other_server.start()
        try:
            gap = world.cross_gap(capsys, "the server lacks commits that were published", "gap:slot-made")
        finally:
            world.service.kill()
            world.writer.stop()
        assert gap.before.through is not None
        assert gap.after.through is not None
        assert parse_lsn(gap.before.through) > parse_lsn(gap.after.through)


@pytest.mark.usefixtures("starts_servers")
@pytest.mark.campaign
def test_campaign_gap(seed: int) -> None:
    figures = run(gap_campaign.campaign(), 1, seed)
    assert figures["gaps"] == 1
