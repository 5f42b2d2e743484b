"""Tests that the job `maintain_view` keeps rows in Redis equal to those that plain Python computes from the same
changes.
"""

import json
import random
import re
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal as Number
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis
from pyspark.sql import SparkSession

from changelog.envelope.errors import ChangelogError
from changelog.envelope.model import Op
from changelog.schemas.avro import Column
from changelog.schemas.types import Array, ColumnType, Decimal, Map, Primitive
from changelog.spark_jobs.maintain_view import JOB
from changelog.spark_jobs.maintaining import in_redis
from changelog.spark_jobs.maintaining.redis_rows import writer
from changelog.spark_jobs.maintaining.target import TargetSettings
from changelog.spark_jobs.views.transforms import schema_of
from tests.servers import fetched
from tests.servers.redis import PASSWORD, RedisServer, temporary_redis
from tests.spark.maintained import NAMES, maintained, scattered
from tests.spark.ran import Run
from tests.spark.test_rebuild_view import announced, flat, grow, position_of
from tests.spark.test_views import State, frame, replay, transactions
from tests.unit.records import record

CONFIG = """
name = "booking"
source = { kind = "postgres", dsn = "postgresql://nowhere" }
tables = { include = ["*"] }
sink = { path = "log" }
views = { orders = { entity = "order" } }
"""
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "maintain-views.md"
TRANSACTIONS = 40
ARGUMENTS = ("--available-now", "--view", "orders", "--output", "redis", "--dsn", "env:REDIS_URL", "--to", "orders")


@pytest.fixture(scope="module")
def redis_server(starts_servers: None) -> Iterator[RedisServer]:
    with temporary_redis(fetched("redis")) as running:
        yield running


@pytest.fixture
def client(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of the server. The server is empty at first."""
    monkeypatch.setenv("REDIS_URL", redis_server.url)
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        client.flushall()
        yield client


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "changelog.toml"
    file.write_text(CONFIG, "utf-8")
    return file


def states(client: Any) -> dict[str, State]:
    """Returns the rows of `orders`, in the form that `replay` returns."""
    keys = client.smembers("orders:keys")
    assert {f"orders:row:{key}" for key in keys} == {*client.keys("orders:row:*")}
    return {key: _state(client.hgetall(f"orders:row:{key}")) for key in keys}


def _state(row: dict[str, str]) -> State:
    values: State = {**row, "id": int(row["id"]), **({"doc": json.loads(row["doc"])} if "doc" in row else {})}
    unavailable = json.loads(row.get("_unavailable", "[]"))
    return {name: values.get(name) for name in NAMES if name not in unavailable}


class _CrashError(Exception):
    pass


def test_late_and_repeated_batches_do_no_harm(
    spark: SparkSession, client: Any, redis_server: RedisServer, tmp_path: Path, seed: int
) -> None:
    records = flat(transactions(seed + 4, 30))
    first, *others = scattered(records, random.Random(seed + 4), shares=(0.7,))
    batches = [first, flat(others), first]
    points = ["view:staged"]

    def crash_once(name: str) -> None:
        if name in points:
            points.remove(name)
            raise _CrashError

    settings = TargetSettings(to="orders", dsn=redis_server.url, reach=crash_once)
    with in_redis.opened(settings) as target, in_redis.opened(settings) as other_target:
        view = maintained(target)
        assert other_target.progress() is not None
        for number, batch in enumerate(batches):
            (tmp_path / str(number)).mkdir()
            rows = frame(spark, tmp_path / str(number), batch)
            if points:
                with pytest.raises(_CrashError):
                    view.apply(rows, {"number": number})
            view.apply(rows, {"number": number})
        assert states(client) == replay(records, max(map(position_of, records)))  # the last record may be a repeat
        assert json.loads(target.progress() or "")["maintained"]["checkpoint"] == {"number": len(batches) - 1}
        view.target = other_target
        with pytest.raises(ChangelogError, match="another run has written orders; let only one run"):
            view.apply(rows, {})
        target.forget(datetime.now(UTC) + timedelta(seconds=2))
        assert not client.exists("orders:deleted", "orders:deleted:at")


def test_a_run_notices_that_another_run_builds_the_view_anew(
    spark: SparkSession, client: Any, redis_server: RedisServer, tmp_path: Path
) -> None:
    """The other run removes the rows that this run has written. A run that did not notice this would store its
    progress, although its rows are gone.
    """
    with in_redis.opened(TargetSettings(to="orders", dsn=redis_server.url)) as other_target:

        def begin_anew(name: str) -> None:
            if name == "view:staged":
                other_target.create([], view.progress.to_json())

        with in_redis.opened(TargetSettings(to="orders", dsn=redis_server.url, reach=begin_anew)) as target:
            view = maintained(target)
            rows = frame(spark, tmp_path, [record(Op.CREATE, '{"id":1,"doc":{}}', key="1")])
            with pytest.raises(ChangelogError, match="another run has written orders; let only one run"):
                view.apply(rows, {"number": 1})
        view.target = other_target
        view.apply(rows, {"number": 1})
    assert states(client).keys() == {"1"}


def test_a_batch_during_which_the_server_loses_rows_is_repeated(
    spark: SparkSession, client: Any, redis_server: RedisServer, tmp_path: Path
) -> None:
    def lose_rows(name: str) -> None:
        progress = client.hgetall("orders:progress")
        redis_server.kill()
        redis_server.start()
        client.hset("orders:progress", mapping=progress)

    rows = frame(spark, tmp_path, [record(Op.CREATE, '{"id":1,"doc":{}}', key="1")])
    with in_redis.opened(TargetSettings(to="orders", dsn=redis_server.url, reach=lose_rows)) as target:
        view = maintained(target)
        with pytest.raises(ChangelogError, match="Redis was restarted while a batch was written; run the job again"):
            view.apply(rows, {"number": 1})
    with in_redis.opened(TargetSettings(to="orders", dsn=redis_server.url)) as target:
        assert target.progress() == view.progress.to_json()
        view.target = target
        view.apply(rows, {"number": 1})
    assert states(client).keys() == {"1"}


def test_redis_follows_a_file_log(
    config: Path, run: Run, client: Any, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's user has the rights that the documentation names."""
    (rights,) = re.findall(r"ACL SETUSER views on >password (.+)`", PAGE.read_text("utf-8"))
    client.execute_command("ACL", "SETUSER", "views", "on", f">{PASSWORD}", *rights.split())
    monkeypatch.setenv("REDIS_URL", redis_server.url.replace("//:", "//views:"))
    workload = transactions(32, TRANSACTIONS)
    first = next(record for records in workload for record in records if record.entity == "order")
    grow(config.parent, [[announced(first)], *workload[: TRANSACTIONS // 2]])
    assert run(JOB, config, *ARGUMENTS).summary["rows"] > 0
    grow(config.parent, workload[TRANSACTIONS // 2 :])
    client.set("orderly", "a name that belongs to somebody else")
    run(JOB, config, *ARGUMENTS)
    expected = replay(flat(workload), position_of(workload[-1][-1]))
    assert states(client) == expected
    assert run(JOB, config, *ARGUMENTS).summary["batches"] == 0
    # Imitates a run with --rebuild that was killed before it had removed this row.
    client.hset("orders:progress", "emptying", "1")
    client.hset("orders:row:left", mapping={"id": "1", "_position": "1"})
    client.sadd("orders:keys", "left")
    run(JOB, config, *ARGUMENTS)
    assert states(client) == {}
    run(JOB, config, *ARGUMENTS, "--rebuild")
    assert states(client) == expected
    assert client.get("orderly")


def test_values_are_stored_as_they_are_published(client: Any, redis_server: RedisServer) -> None:
    values: dict[str, tuple[ColumnType, object, str]] = {
        "long": (Primitive.LONG, 9007199254740993, "9007199254740993"),
        "open": (Primitive.BOOLEAN, True, "true"),
        "note": (Primitive.STRING, 'say "é"\x00', 'say "é"\x00'),
        "amount": (
            Decimal(precision=30, scale=2),
            Number("123456789012345678901234567.10"),
            "123456789012345678901234567.10",
        ),
        "ratio": (Primitive.DOUBLE, 0.1, "0.1"),
        "nan": (Primitive.DOUBLE, float("nan"), "NaN"),
        "day": (Primitive.DATE, date(2026, 11, 21), "2026-11-21"),
        "at": (Primitive.TIMESTAMP_TZ, datetime(2026, 11, 21, 3, 10, 2, tzinfo=UTC), "2026-11-21T03:10:02.000000Z"),
        "bytes": (Primitive.BYTES, b"\x00\xff", "AP8="),
        "doc": (Primitive.JSON, '{"n":1e+20}', '{"n":1e+20}'),
        "tags": (Array(element=Primitive.STRING), ["a", None], '["a",null]'),
        "pairs": (Map(value=Primitive.STRING), [("a", "b")], '{"a":"b"}'),
        "nothing": (Primitive.STRING, None, ""),
    }
    columns = [Column(name=name, type=type_, nullable=True) for name, (type_, _, _) in values.items()]
    about = {"_key": "k", "_position": "1", "_op": "create", "_context": '{"a":1}', "_begun": True}
    about |= {"_unavailable": [], "_out_of_range": ["nothing"]}
    row = {name: value for name, (_, value, _) in values.items()} | about
    batch = pa.RecordBatch.from_pylist([row], schema=schema_of(columns))
    client.hset("orders:progress", "nonce", "present")
    with pytest.raises(ChangelogError, match="writing rows to Redis: a later batch has begun"):
        list(writer(redis_server.url, "orders", "earlier", columns)([batch]))
    assert client.keys("*") == ["orders:progress"], "a task that is left over from an earlier batch writes nothing"
    write = writer(redis_server.url, "orders", "present", columns)
    assert [written.to_pylist() for written in write([batch])] == [[{"states": 1}]]
    stored = client.hgetall("orders:row:k")
    assert stored == {
        **{name: text for name, (_, value, text) in values.items() if value is not None},
        "_position": "1",
        "_op": "create",
        "_context": '{"a":1}',
        "_out_of_range": '["nothing"]',
    }


def test_a_full_server_refuses_rows_and_keeps_those_that_it_has(client: Any, redis_server: RedisServer) -> None:
    columns = [Column(name="note", type=Primitive.STRING, nullable=True)]
    write = writer(redis_server.url, "orders", "present", columns)

    def batch(position: str) -> pa.RecordBatch:
        about = {"_position": position, "_op": "update", "_unavailable": [], "_out_of_range": [], "_begun": False}
        rows = [{"note": position * 100, "_key": key, **about} for key in "abc"]
        return pa.RecordBatch.from_pylist(rows, schema=schema_of(columns))

    client.hset("orders:progress", "nonce", "present")
    list(write([batch("1")]))
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(ChangelogError, match="writing rows to Redis: OutOfMemoryError"):
            list(write([batch("2")]))
    finally:
        client.config_set("maxmemory", 0)
    assert [client.hget(f"orders:row:{key}", "note") for key in "abc"] == ["1" * 100] * 3


@pytest.mark.parametrize(
    ("commands", "arguments", "code", "message"),
    [
        ([], ("--dsn", "env:UNREACHABLE"), 3, r"cannot reach Redis \(ConnectionError\); check --dsn"),
        ([], ("--dsn", "env:WRONG_PASSWORD"), 3, r"Redis refuses the user \(AuthenticationError\); check --dsn"),
        ([], ("--dsn", "env:WRONG_SCHEME"), 2, "the text of --dsn is not a URL of Redis; redis://USER"),
        ([], ("--dsn", "env:UNKNOWN_OPTION"), 2, "the text of --dsn is not a URL of Redis; redis://USER"),
        ([], ("--dsn", "env:IMPOSSIBLE_HOST"), 2, "the text of --dsn is not a URL of Redis; redis://USER"),
        ([], ("--to", "a b"), 2, "'a b' cannot begin names in Redis; --to is the beginning of the names"),
        (["SET orders:progress 1"], (), 2, "the key orders:progress in Redis is not part of a view that this job made"),
        (["HSET orders:progress record {}"], (), 2, "orders is not a view that this job made; use another --to"),
        (["SADD orders:keys a"], (), 2, "the key orders:keys in Redis is not part of a view that this job made"),
    ],
)
def test_a_refused_run_changes_nothing(
    config: Path,
    run: Run,
    client: Any,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    commands: list[str],
    arguments: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    monkeypatch.setenv("UNREACHABLE", f"redis://:{PASSWORD}@127.0.0.1:1/0")
    monkeypatch.setenv("WRONG_PASSWORD", redis_server.url.replace(PASSWORD, f"{PASSWORD}-not"))
    monkeypatch.setenv("WRONG_SCHEME", redis_server.url.replace("redis:", "http:"))
    monkeypatch.setenv("UNKNOWN_OPTION", f"{redis_server.url}?ssl=true")
    monkeypatch.setenv("IMPOSSIBLE_HOST", redis_server.url.replace("127.0.0.1", "a" * 64))
    change = record(Op.CREATE, '{"id":1,"doc":{}}', key="1")
    grow(config.parent, [[announced(change), change]])
    for command in commands:
        client.execute_command(*command.split())
    before = {name: client.dump(name) for name in client.keys("*")}
    (line,) = run(JOB, config, *ARGUMENTS, *arguments, code=code).lines
    assert re.search(message, line), line
    assert PASSWORD not in line
    assert {name: client.dump(name) for name in client.keys("*")} == before


def test_the_client_and_its_url_are_needed(
    config: Path, run: Run, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = record(Op.CREATE, '{"id":1,"doc":{}}', key="1")
    grow(config.parent, [[announced(change), change]])
    without_url = [word for word in ARGUMENTS if word not in ("--dsn", "env:REDIS_URL")]
    assert "--output redis needs --dsn; --dsn env:NAME" in run(JOB, config, *without_url, code=2).lines[0]
    monkeypatch.delitem(sys.modules, in_redis.__name__)
    monkeypatch.setitem(sys.modules, "redis", None)
    (line,) = run(JOB, config, *ARGUMENTS, code=2).lines
    assert "--output is redis, and redis is not installed" in line
