"""Tests views that two instances serve. Each instance answers for all rows, also for those that the other instance
holds. No row is older than the answer says.
"""

import http.client
import random
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from changelog.connectors.kafka.client import Client
from changelog.connectors.kafka.offsets import Part, committed, ends
from changelog.connectors.servers.kafka import Broker
from changelog.connectors.servers.unprivileged import free_port
from changelog.connectors.sinks.kafka.encoding.messages import JSON
from changelog.connectors.sinks.kafka.reading.spans import messages_in
from changelog.connectors.sinks.kafka.sink import KafkaSettings
from changelog.connectors.views.served import INSTANCES
from changelog.connectors.views.streams.tables import changelog_of
from changelog.envelope.key import partition
from changelog.envelope.model import Op
from tests.integration.kafka.served_views import WITHOUT_BATCH, ServedViews
from tests.integration.kafka.test_served_views import (
    KEYS_KEPT,
    NAME,
    PARTITIONS,
    Changelog,
    assert_equal,
    configure,
)
from tests.patience import until
from tests.unit.records import record
from tests.unit.views.running import Api
from tests.unit.views.story import ENTITIES, Story

SESSION_S = 20
"""An instance that hangs or ends keeps its partitions for this many seconds, until its session ends. That is long
enough for what the tests do meanwhile, even on a busy machine.
"""

TOKEN = "the-token-of-instances"
KEYS = [f"key-{number}" for number in range(8)]
TARGETS = [f"/{view}/{key}" for view in (*ENTITIES, WITHOUT_BATCH) for key in KEYS]


@pytest.fixture(scope="module")
def changelog(broker: Broker, seed: int) -> Changelog:
    client = Client(bootstrap_servers=broker.bootstrap_servers)
    story = Story(random.Random(seed), batch_share=0.3)
    changelog = Changelog(KafkaSettings(client=client, name=NAME, prefix="view-instances"), story)
    changelog.announce()
    changelog.more(30)
    return changelog


@pytest.fixture(scope="module")
def instances(changelog: Changelog, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[ServedViews]]:
    with running(tmp_path_factory.mktemp("instances"), changelog.settings) as instances:
        yield instances


@contextmanager
def running(folder: Path, settings: KafkaSettings, store: str = "rocksdb") -> Iterator[Sequence[ServedViews]]:
    """Runs two instances. Each is the standby of the other: it keeps a copy of the other's rows."""
    instances = []
    for number in range(2):
        instance_folder = folder / str(number)
        instance_folder.mkdir()
        port = free_port()
        instances.append(ServedViews(configure(instance_folder, settings, streams_options(port, store)), port))
    try:
        for instance in instances:
            instance.begin()
        for instance in instances:
            instance.ready()
        yield instances
    finally:
        for instance in instances:
            instance.close()


def streams_options(port: int, store: str = "rocksdb") -> str:
    """Returns the settings of an instance that others reach at this port."""
    return f"""advertised = "127.0.0.1:{port}"
instance_token = "{TOKEN}"
session_seconds = {SESSION_S}
standbys = 1
store = "{store}"
"""


def write(changelog: Changelog, number: int) -> None:
    """Stores a change of each key."""
    row = f'{{"n":{number}}}'
    changelog.add(
        *(
            [record(Op.UPDATE, row, key=key, entity=entity, partition=partition(key.encode(), PARTITIONS))]
            for entity in ENTITIES
            for key in KEYS
        )
    )


def stop_amid_changes(instance: ServedViews, changelog: Changelog) -> None:
    """Freezes an instance while it processes changes of orders, as soon as it has processed one in each partition."""
    topic, group = f"{changelog.settings.prefix}.order", f"{changelog.settings.prefix}.{instance.by_service}"
    parts = [(topic, number) for number in range(PARTITIONS)]
    place = {key: partition(key.encode(), PARTITIONS) for key in KEYS}
    changes = [record(Op.UPDATE, '{"n":0}', key=key, partition=place[key]) for key in KEYS]
    with closing(changelog.settings.client.reader(open_too=True, group=group)) as reader, ThreadPoolExecutor(1) as pool:
        before = committed(reader, parts)
        assert len(before) == PARTITIONS
        adding = pool.submit(changelog.add, *[changes for _ in range(300)])
        until(lambda: _all_advanced(before, committed(reader, parts)), "no change is processed")
        instance.send(signal.SIGSTOP)
        adding.result()


def _all_advanced(before: Mapping[Part, int], now: Mapping[Part, int]) -> bool:
    return all(now.get(part, 0) > offset for part, offset in before.items())


def last_positions(changelog: Changelog, name: str) -> Mapping[str, str]:
    """Returns the position of each key's last change. Takes it from the topic in which Kafka Streams keeps a copy of
    the rows of the application `name`.
    """
    client, topic = changelog.settings.client, changelog_of(f"{changelog.settings.prefix}.{name}", "order")
    spans = {part: range(end) for part, end in ends(client.admin(), [(topic, n) for n in range(PARTITIONS)]).items()}
    with closing(client.reader()) as consumer:
        values = {message.key(): message.value() for messages in messages_in(consumer, spans) for message in messages}
    return {key: str(JSON.decode(values[key.encode()] or b"").provenance.source.position) for key in KEYS}


def statuses(api: Api, parameters: str = "") -> Sequence[int]:
    return [api.get(f"{target}{parameters}").status for target in TARGETS]


def await_all(api: Api, parameters: str = "") -> None:
    until(lambda: set(statuses(api, parameters)) == {200}, "a row cannot be read")


def assert_old_rows_say_so(api: Api, changelog: Changelog) -> None:
    """Checks that each row can be read, and that an answer with an old row has an old position in X-Position."""
    for view in (*ENTITIES, WITHOUT_BATCH):
        for key in KEYS:
            target, newest = f"/{view}/{key}?stale=allowed", changelog.rows[view][key]["position"]
            until(lambda target=target: api.get(target).status != 503, "a row cannot be read")  # type: ignore[misc]
            answer = api.get(target)
            assert answer.status in {200, 404}
            assert answer.json.get("position") == newest or answer.headers["x-position"] < newest


def test_each_instance_has_all_rows(instances: Sequence[ServedViews], changelog: Changelog) -> None:
    for instance in instances:
        assert_equal(instance.api, changelog)
    changelog.more(10)
    for instance in instances:
        assert_equal(instance.api, changelog)


def test_an_instance_that_hangs_is_named_and_answers_nothing_old_afterwards(
    instances: Sequence[ServedViews], changelog: Changelog
) -> None:
    first, second = instances
    write(changelog, 0)
    await_all(first.api)
    stop_amid_changes(second, changelog)
    answers = [first.api.get(target) for target in TARGETS]
    assert {answer.status for answer in answers} == {200, 503}  # both instances have partitions
    refusal = next(answer for answer in answers if answer.status == 503)
    assert refusal.headers["retry-after"] == "1"
    assert refusal.json["error"].startswith(f"the instance {urlsplit(second.api.address).netloc} has these rows")
    assert_old_rows_say_so(first.api, changelog)
    await_all(first.api)  # the first instance has taken over the partitions
    write(changelog, 1)
    reached = f"?min_position={changelog.last}"
    until(lambda: set(statuses(first.api, reached)) == {200}, "the writes do not arrive")
    second.send(signal.SIGCONT)
    for _ in range(20):
        for target in TARGETS:
            answer = second.api.get(f"{target}{reached}")
            assert answer.status == 503 or answer.json["current"]["n"] == 1, target
    await_all(second.api)
    rows = changelog.rows[WITHOUT_BATCH]
    assert last_positions(changelog, second.by_service) == {key: rows[key]["position"] for key in KEYS}


def test_a_crash_moves_partitions_and_a_restart_brings_them_back(
    instances: Sequence[ServedViews], changelog: Changelog
) -> None:
    first, second = instances
    write(changelog, 2)
    await_all(first.api, f"?min_position={changelog.last}")
    second.kill()
    assert set(statuses(first.api)) == {200, 503}
    assert_old_rows_say_so(first.api, changelog)
    assert {first.api.get(f"/{entity}?stale=allowed").status for entity in ENTITIES} == {200}
    await_all(first.api)
    write(changelog, 2)
    assert_equal(first.api, changelog)
    second.begin()
    second.ready()
    assert_equal(second.api, changelog)
    assert_equal(first.api, changelog)
    assert second.stop() == -signal.SIGTERM
    assert set(statuses(first.api)) == {200, 503}  # the second instance may come back, so no partition moves yet


def test_metrics_count_restored_rows_and_the_lag(instances: Sequence[ServedViews]) -> None:
    text = instances[0].api.get("/metrics").body.decode()
    figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("changelog_view_"))
    assert float(figures["changelog_view_store_bytes"]) > 0
    assert float(figures["changelog_view_restored_messages_total"]) > 0
    assert float(figures["changelog_view_restoring_offsets"]) == 0
    assert {'changelog_view_lag_offsets{entity="order"}', 'changelog_view_standby_lag_offsets{entity="guest"}'} <= set(
        figures
    )


def test_only_instances_may_ask_for_messages(instances: Sequence[ServedViews]) -> None:
    with closing(http.client.HTTPConnection(urlsplit(instances[0].api.address).netloc)) as connection:

        def status(method: str, token: str, body: bytes = b"") -> int:
            connection.request(method, INSTANCES, body, {"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            answer.read()
            return answer.status

        assert status("POST", "the-token-of-a-reader") == 401
        assert status("GET", TOKEN) == 405
        assert status("POST", TOKEN, b"{") == 503
        assert status("POST", TOKEN, b"x" * (2 << 20)) == 413


def test_an_instance_whose_address_another_process_takes_over_says_so(
    instances: Sequence[ServedViews], changelog: Changelog, tmp_path: Path
) -> None:
    first = instances[0]
    until(lambda: first.api.get("/ready").status == 200, "the first process is not ready")
    port = urlsplit(first.api.address).port
    assert port is not None
    second = ServedViews(configure(tmp_path, changelog.settings, streams_options(port)), free_port())
    with closing(second):
        second.begin()
        until(lambda: first.api.get("/ready").status == 503, "the first process is still ready")
        error = f"another process took over the address 127.0.0.1:{port}"
        until(lambda: error in first.api.get(TARGETS[0]).body.decode(), "the first process does not say who took over")
        second.ready()


def test_a_standby_has_the_rows_that_changed_last(changelog: Changelog, tmp_path: Path) -> None:
    settings = replace(changelog.settings, prefix="recent-rows")
    recent = Changelog(settings, Story(random.Random(1)))
    recent.announce()
    known_keys = {key for number in range(PARTITIONS) for key in keys_of(number)[-KEYS_KEPT:]}
    expected = [1 if target.rpartition("/")[2] in known_keys else 504 for target in TARGETS]
    with running(tmp_path, settings, f"lru:{KEYS_KEPT}") as (first, second):
        for number in range(2):
            write(recent, number)
        for instance in (first, second):
            until(lambda api=instance.api: numbers(api, f"?min_position={recent.last}") == expected, "rows lag")  # type: ignore[misc]
        second.kill()
        assert 503 in numbers(first.api)
        until(lambda: numbers(first.api, "?stale=allowed") == expected, "the standby lacks rows")


def keys_of(number: int) -> Sequence[str]:
    """Returns the keys in a partition, in the order in which they are written."""
    return [key for key in KEYS if partition(key.encode(), PARTITIONS) == number]


def numbers(api: Api, parameters: str = "") -> Sequence[int]:
    """Returns the number that was written last to each row, or the status of the answer if the row is not known."""
    answers = [api.get(f"{target}{parameters}") for target in TARGETS]
    return [answer.json["current"]["n"] if answer.status == 200 else answer.status for answer in answers]
