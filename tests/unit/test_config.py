"""Tests which configurations are accepted, and the errors for the others. Secrets must never be shown."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict

from changelog.connectors import config
from changelog.connectors.config import FilesConfig, KafkaConfig
from changelog.connectors.config.mysql import MysqlConfig
from changelog.connectors.config.postgres import USUAL_DSN
from changelog.connectors.wiring.sources import postgres_settings
from changelog.envelope.errors import ChangelogError, Kind

WHOLE = """
name = "booking-eu"
[source]
kind = "postgres"
dsn = "env:DATABASE_URL"
[sink]
path = "data/changelog"
[tables]
include = ["public.*"]
[entities.order]
table = "public.orders"
partition_by = ["guest_id"]
partitions = 12
mask = { email = "sha256" }
[entities.order-line]
table = "public.order_lines"
[mask]
key = "file:mask.key"
[provenance]
default = { apiVersion = "v0" }
"""
ENVIRON = {"DATABASE_URL": "postgresql://ada:opensesame@db/app"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "mask.key").write_text("sixteen bytes or more\n")
    path = tmp_path / "changelog.toml"
    path.write_text(WHOLE)
    return path


def refusal(path: Path, environ: dict[str, str]) -> list[str]:
    with pytest.raises(ChangelogError) as caught:
        config.load(path, environ)
    assert caught.value.kind is Kind.USAGE
    return [line.strip() for line in str(caught.value).splitlines()]


@pytest.mark.parametrize(("folder", "place"), [("copies", "etc/copies"), ("/mnt/copies", "/mnt/copies")])
def test_a_folder_for_copies_is_relative_to_the_configuration_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, place: str
) -> None:
    """Spark's executors have another working directory, so they would not find a folder that was relative to it."""
    (tmp_path / "etc").mkdir()
    monkeypatch.chdir(tmp_path)
    source = f'{{ kind = "mysql", dsn = "mysql://a@b/c", fence_folder = "{folder}" }}'
    Path("etc/c.toml").write_text(
        f'name = "a"\nsource = {source}\nsink = {{ path = "x" }}\ntables = {{ include = ["*"] }}'
    )
    loaded = config.load(Path("etc/c.toml"), {})
    assert isinstance(loaded.source, MysqlConfig)
    assert loaded.source.fence_folder == tmp_path / place


def test_a_complete_file_is_loaded(file: Path) -> None:
    loaded = config.load(file, ENVIRON)
    source = postgres_settings(loaded)
    assert source.slot == source.publication == "booking_eu"
    assert source.dsn == "postgresql://ada:opensesame@db/app"
    assert isinstance(loaded.sink, FilesConfig)
    assert loaded.sink.commit_seconds == 1
    assert loaded.sink.path == file.parent / "data/changelog"
    assert loaded.sink.commit_bytes == 64 << 20
    assert loaded.entities["order"].partition_by == ("guest_id",)
    assert loaded.mask is not None
    assert loaded.mask.key == "sixteen bytes or more"
    assert loaded.provenance.default.api_version == "v0"
    assert loaded.provenance.default.service_name == "unknown"
    assert loaded.service.address == ("127.0.0.1", 9464)


def test_secrets_stay_out_of_the_representation(file: Path) -> None:
    text = repr(config.load(file, ENVIRON))
    assert "opensesame" not in text
    assert "sixteen" not in text


def test_the_environment_overrides_the_file(file: Path) -> None:
    environ = {
        **ENVIRON,
        "CHANGELOG__SERVICE__LISTEN": "[::1]:0",
        "CHANGELOG__ENTITIES__ORDER_LINE__PARTITIONS": "3",
        "CHANGELOG__ENTITIES__ORDER__KEY": '["region", "id"]',
        "CHANGELOG__PROVENANCE__DEFAULT__SERVICENAME": "legacy",
        "CHANGELOG__SINK__COMMIT_SECONDS": "0.5",
        "CHANGELOG__SOURCE__FAILOVER": "true",
    }
    loaded = config.load(file, environ)
    assert loaded.service.address == ("::1", 0)
    assert loaded.entities["order-line"].partitions == 3
    assert loaded.entities["order"].key == ("region", "id")
    assert loaded.provenance.default.service_name == "legacy"
    assert loaded.sink.commit_seconds == 0.5
    assert postgres_settings(loaded).failover is True


def test_a_variable_may_refer_to_another(file: Path) -> None:
    loaded = config.load(file, {"CHANGELOG__SOURCE__DSN": "env:OTHER", "OTHER": "dbname=app"})
    assert postgres_settings(loaded).dsn == "dbname=app"


KAFKA = """
name = "booking"
source = { kind = "postgres", dsn = "dbname=app" }
tables = { include = ["*"] }
[sink]
kind = "kafka"
bootstrap_servers = "one:9092,two:9092"
"""


@pytest.fixture
def kafka(file: Path) -> Path:
    file.write_text(KAFKA)
    return file


def test_a_changelog_on_kafka_has_these_defaults(kafka: Path) -> None:
    loaded = config.load(kafka, {})
    assert isinstance(loaded.sink, KafkaConfig)
    assert loaded.prefix == "booking"
    assert (loaded.sink.codec, loaded.sink.on_too_large, loaded.sink.commit_seconds) == ("json", "stop", 0.02)
    assert loaded.sink.replication_factor is None
    assert loaded.sink.create_topics


def test_the_environment_can_choose_kafka_and_secrets_stay_out_of_the_representation(file: Path) -> None:
    environ = {
        **ENVIRON,
        "CHANGELOG__SINK__KIND": "kafka",
        "CHANGELOG__SINK__BOOTSTRAP_SERVERS": "broker:9092",
        "CHANGELOG__SINK__PREFIX": "shop.eu",
        "CHANGELOG__SINK__CODEC": "avro",
        "CHANGELOG__SINK__REGISTRY": "http://ada:opensesame@registry:8081",
        "CHANGELOG__SINK__CLIENT": '{"sasl.username": "ada", "sasl.password": "env:KAFKA_PASSWORD"}',
        "CHANGELOG__SINK__REGISTRY_CLIENT": '{"basic.auth.user.info": "file:mask.key", "timeout": 5}',
        "CHANGELOG__ENTITIES__ORDER__PROFILE": "history",
        "CHANGELOG__ENTITIES__ORDER__RETENTION_DAYS": "9",
        "CHANGELOG__ENTITIES__ORDER__TOPIC_SETTINGS": '{"segment.ms": "1000"}',
        "KAFKA_PASSWORD": "opensesame",
    }
    file.write_text(WHOLE.replace('path = "data/changelog"', ""))
    loaded = config.load(file, environ)
    assert isinstance(loaded.sink, KafkaConfig)
    assert loaded.prefix == "shop.eu"
    assert loaded.sink.client == {"sasl.username": "ada", "sasl.password": "opensesame"}
    assert loaded.sink.registry_client == {"basic.auth.user.info": "sixteen bytes or more", "timeout": 5}
    order = loaded.entities["order"]
    assert (order.profile, order.retention_days, order.topic_settings) == ("history", 9, {"segment.ms": "1000"})
    assert "opensesame" not in repr(loaded)
    assert "sixteen" not in repr(loaded)


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ('kind = "oracle"', ["sink.kind: should be 'files' or 'kafka'"]),
        ("kind = 5", ["sink.kind: should be 'files' or 'kafka'"]),
        ('kind = "kafka"', ["sink.bootstrap_servers: is missing; add it"]),
        (
            'kind = "kafka"\npath = "x"\nbootstrap_server = "a:1"\nclient = { acks = 1 }\nreplication_factor = 0',
            [
                "sink.bootstrap_servers: is missing; add it",
                "sink.client.acks: should be a valid string",
                "sink.replication_factor: should be greater than or equal to 1",
                "sink.path: is not known; known here: kind, ",
                "sink.bootstrap_server: is not known; did you mean bootstrap_servers?",
            ],
        ),
        ('kind = "kafka"\nbootstrap_servers = "a:1"\nprefix = "a/b"', ["sink.prefix: should be made of "]),
        (
            'kind = "kafka"\nbootstrap_servers = "a:1"\ncodec = "avro"',
            ['sink.registry: is missing, and codec = "avro" needs one; add registry = "http://HOST:8081"'],
        ),
        (
            'kind = "kafka"\nbootstrap_servers = "a:1"\nregistry = "http://a"\nauto_register = true',
            [
                'sink.auto_register: applies only to codec = "avro"; set that codec, or leave this key out',
                'sink.registry: applies only to codec = "avro"; set that codec, or leave this key out',
            ],
        ),
        (
            'kind = "kafka"\nbootstrap_servers = "a:1"\ncommit_seconds = 30.5',
            ["sink.transaction_timeout_seconds: is less than 2 times commit_seconds (30.5), so the broker could "],
        ),
        (
            'path = "x"\n[entities.order]\nprofile = "history"\ntopic_settings = {}',
            [
                "entities.order.profile: applies only to topics, and the sink is files; leave this key out",
                "entities.order.topic_settings: applies only to topics, and the sink is files; leave this key out",
            ],
        ),
        (
            'kind = "kafka"\nbootstrap_servers = "a:1"\n[entities.order]\nretention_days = 9',
            [
                (
                    'entities.order.retention_days: applies only to profile = "history"; set that profile, or leave '
                    "this key out"
                )
            ],
        ),
    ],
)
def test_an_invalid_sink_is_refused(kafka: Path, text: str, problems: list[str]) -> None:
    kafka.write_text(KAFKA.partition('kind = "kafka"')[0] + text)
    lines = refusal(kafka, {})
    messages = lines[1:] if len(lines) > 1 else [lines[0].removeprefix(f"{kafka}: ")]
    assert len(messages) == len(problems), messages
    for line, problem in zip(messages, problems, strict=True):
        assert line.startswith(problem)


@pytest.mark.parametrize(
    ("totals", "problem"),
    [
        ("", "totals.by: is missing: add the columns whose values make the groups"),
        (
            'session = { column = "at", gap_seconds = 9 }',
            "totals.by: is missing: add the columns that say to whom a session",
        ),
        (
            'by = ["x"], window = { column = "at", seconds = 9 }, session = { column = "at", gap_seconds = 9 }',
            "totals.session: cannot be combined with window; use another view for one of them",
        ),
        (
            'window = { column = "at", seconds = 9, every_seconds = 10 }',
            "totals.window.every_seconds: should be at most `seconds`, and at least `seconds` / 1000",
        ),
        ('window = { column = "at", seconds = 3600, every_seconds = 1 }', "totals.window.every_seconds: should be at"),
        ('window = { column = "at", seconds = 0.5 }', "totals.window.seconds: should be a valid integer"),
        ('by = ["x"], session = { gap_seconds = 9 }', "totals.session.column: is missing; add it"),
    ],
)
def test_invalid_totals_are_refused(kafka: Path, totals: str, problem: str) -> None:
    kafka.write_text(f'{KAFKA}[views.x]\nentity = "order"\ntotals = {{ {totals} }}')
    [line] = refusal(kafka, {})
    assert line.startswith(f"{kafka}: views.x.{problem}")


def test_the_timeout_of_a_transaction_covers_two_commits(kafka: Path) -> None:
    sink = 'kind = "kafka"\nbootstrap_servers = "a:1"\ncommit_seconds = 30\n'
    kafka.write_text(KAFKA.partition('kind = "kafka"')[0] + sink + "transaction_timeout_seconds = 60")
    assert config.load(kafka, {}).sink.commit_seconds == 30
    kafka.write_text(KAFKA.partition('kind = "kafka"')[0] + sink + "transaction_timeout_seconds = 59")
    [line] = refusal(kafka, {})
    assert line.startswith(f"{kafka}: sink.transaction_timeout_seconds: is less than 2 times commit_seconds (30)")


@pytest.mark.parametrize(("listen", "host"), [("[::1]:9464", "::1"), ("localhost:0", "localhost")])
def test_the_host_of_the_service_may_be_ipv6_or_a_name(kafka: Path, listen: str, host: str) -> None:
    kafka.write_text(f'{KAFKA}\n[service]\nlisten = "{listen}"')
    assert config.load(kafka, {}).service.address[0] == host


@pytest.mark.parametrize("listen", ["::1:9464", "[::1:9464", ":9464", "host:99999"])
def test_an_invalid_address_of_the_service_is_refused(kafka: Path, listen: str) -> None:
    kafka.write_text(f'{KAFKA}\n[service]\nlisten = "{listen}"')
    assert refusal(kafka, {})[0].startswith(f'{kafka}: service.listen: should be "HOST:PORT"')


def test_all_errors_are_reported_at_once(file: Path) -> None:
    file.write_text(
        """
        nam = "Booking"
        [source]
        kind = "postgres"
        dsn = "env:DATABASE_URL"
        slot = "Upper"
        [sink]
        paht = "x"
        commit_rows = 0
        [entities.dead]
        mask = { email = "md5" }
        key = []
        [entities.order]
        partitions = "many"
        [mask]
        key = "short"
        [service]
        listen = "9464"
        """
    )
    assert refusal(file, {"CHANGELOG__SOURCE__SLOTT": "x", "CHANGELOG__NAM__X": "y"}) == [
        f"{file}: 14 problems",
        "nam: is not a table, so CHANGELOG__NAM__X cannot set anything in it; unset the variable",
        "source.dsn: the environment has no DATABASE_URL; set it",
        "name: is missing; add it",
        "source.slot: should be made of a-z, 0-9 and _",
        "source.slott (from CHANGELOG__SOURCE__SLOTT): is not known; did you mean slot?",
        "sink.path: is missing; add it",
        "sink.commit_rows: should be greater than or equal to 1",
        "sink.paht: is not known; did you mean path?",
        "entities.dead: dead is a reserved name",
        "entities.dead.key: should not be empty",
        "entities.dead.mask.email: should be 'drop', 'null' or 'sha256'",
        "entities.order.partitions: should be a valid integer",
        "mask.key: should have 16 characters or more",
        'service.listen: should be "HOST:PORT", as in "127.0.0.1:9464" or "[::1]:9464"',
    ]


def test_an_unknown_kind_of_source_is_refused(file: Path) -> None:
    file.write_text('name = "a"\nsource = { kind = "oracle", dsn = "x" }\nsink = { path = "log" }')
    assert refusal(file, {}) == [f"{file}: source.kind: should be 'postgres' or 'mysql' or 'debezium'"]


@pytest.mark.parametrize("dsn", ["mysql+pymysql://ada@db/app", "user=ada", "mysql//ada@db/app"])
def test_a_wrong_url_of_mysql_is_refused(file: Path, dsn: str) -> None:
    file.write_text(f'name = "a"\nsource = {{ kind = "mysql", dsn = "{dsn}" }}\nsink = {{ path = "log" }}')
    expected = 'source.dsn: should be a URL, as in "mysql://USER@HOST:3306/DATABASE"'
    assert refusal(file, {}) == [f"{file}: {expected}"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            '[entities.order]\nmask = { a = "sha256" }\ntable = "orders"',
            'entities.order.mask: sha256 needs a secret; add [mask] key = "env:NAME"',
        ),
        ("[entities.order]", 'entities.order.table: is missing; add table = "SCHEMA.TABLE"'),
        ("", 'entities: no table is to be published; add [tables] include = ["public.*"], or [entities.X]'),
        ("[tables]\ninclude = 5", "tables.include: should be a list"),
        ("[tables]\ninclude = ['*']\n[entities]\norder = 5", "entities.order: should be a table"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(f"name = 'a'\nsource = {{ kind = 'postgres', dsn = 'dbname=a' }}\nsink = {{ path = 'x' }}\n{text}")
    assert refusal(path, {}) == [f"{path}: {problem}"]


@given(st.from_regex(USUAL_DSN, fullmatch=True))
def test_a_usual_dsn_is_valid(dsn: str) -> None:
    assert conninfo_to_dict(dsn) is not None


@pytest.mark.parametrize("dsn", ["opensesame", "postgresql://ada:opensesame@[", "password=opensesame port"])
def test_a_malformed_dsn_is_not_quoted(file: Path, dsn: str) -> None:
    (line,) = refusal(file, {"DATABASE_URL": dsn})
    assert line.startswith(f"{file}: source.dsn: should be a connection string")
    assert "opensesame" not in line


def test_files_that_cannot_be_read_are_refused(file: Path, tmp_path: Path) -> None:
    hint = "write a configuration with `changelog init --dsn DSN`, or name its file with --config"
    assert refusal(tmp_path / "none.toml", {}) == [f"{tmp_path / 'none.toml'}: no such file; {hint}"]
    (tmp_path / "mask.key").unlink()
    assert refusal(file, ENVIRON) == [
        f"{file}: mask.key: {tmp_path / 'mask.key'} cannot be read (No such file or directory)"
    ]
    file.write_bytes(b"name = '\xff'")
    assert refusal(file, {}) == [f"{file}: is not UTF-8 at byte 8"]
    file.write_text("name =")
    assert refusal(file, {})[0].startswith(f"{file}: is not TOML: ")


def test_an_entity_overrides_the_general_drift_settings(file: Path) -> None:
    file.write_text(WHOLE + "[drift]\nrepublish_keys_max = 5\nsevere_ppm = 7\n[entities.order.drift]\nsevere_ppm = 9\n")
    loaded = config.load(file, ENVIRON)
    assert (loaded.drift_of("order").republish_keys_max, loaded.drift_of("order").severe_ppm) == (5, 9)
    assert loaded.drift_of("order-line") == loaded.drift_of("not-in-the-file") == loaded.drift
    assert loaded.drift.severe_ppm == 7
