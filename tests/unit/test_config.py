"""The configuration: what it accepts, what it says of everything else, and that it keeps secrets."""

from pathlib import Path

import pytest

from connectors import config
from envelope.errors import ChangelogError, Kind

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


def test_a_whole_file(file: Path) -> None:
    found = config.load(file, ENVIRON)
    assert found.slot == found.publication == "booking_eu"
    assert found.source.dsn == "postgresql://ada:opensesame@db/app"
    assert found.sink.path == file.parent / "data/changelog"
    assert found.sink.commit_bytes == 64 << 20
    assert found.entities["order"].partition_by == ("guest_id",)
    assert found.mask is not None
    assert found.mask.key == "sixteen bytes or more"
    assert found.provenance.default.api_version == "v0"
    assert found.provenance.default.service_name == "unknown"
    assert found.service.address == ("127.0.0.1", 9464)


def test_secrets_are_in_no_representation(file: Path) -> None:
    text = repr(config.load(file, ENVIRON))
    assert "opensesame" not in text
    assert "sixteen" not in text


def test_the_environment_overrides(file: Path) -> None:
    environ = {
        **ENVIRON,
        "CHANGELOG__SERVICE__LISTEN": "[::1]:0",
        "CHANGELOG__ENTITIES__ORDER_LINE__PARTITIONS": "3",
        "CHANGELOG__ENTITIES__ORDER__KEY": '["region", "id"]',
        "CHANGELOG__PROVENANCE__DEFAULT__SERVICENAME": "legacy",
        "CHANGELOG__SINK__COMMIT_SECONDS": "0.5",
        "CHANGELOG__SOURCE__FAILOVER": "true",
    }
    found = config.load(file, environ)
    assert found.service.address == ("::1", 0)
    assert found.entities["order-line"].partitions == 3
    assert found.entities["order"].key == ("region", "id")
    assert found.provenance.default.service_name == "legacy"
    assert found.sink.commit_seconds == 0.5
    assert found.source.failover is True


def test_a_variable_may_refer_to_another(file: Path) -> None:
    found = config.load(file, {"CHANGELOG__SOURCE__DSN": "env:OTHER", "OTHER": "dbname=app"})
    assert found.source.dsn == "dbname=app"


def test_all_errors_at_once(file: Path) -> None:
    file.write_text(
        """
        nam = "Booking"
        [source]
        kind = "oracle"
        dsn = "env:DATABASE_URL"
        slot = "Upper"
        [sink]
        kind = "kafka"
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
        f"{file}: 16 problems",
        "nam: is not a table, so CHANGELOG__NAM__X cannot set anything in it; unset the variable",
        "source.dsn: the environment has no DATABASE_URL; set it",
        "name: is missing; add it",
        "source.kind: should be 'postgres'",
        "source.slot: should be made of a-z, 0-9 and _",
        "source.slott (from CHANGELOG__SOURCE__SLOTT): is not known; did you mean slot?",
        "sink.kind: should be 'files'",
        "sink.path: is missing; add it",
        "sink.commit_rows: should be greater than or equal to 1",
        "sink.paht: is not known; did you mean path?",
        "entities.dead: dead is a reserved name",
        "entities.dead.key: should not be empty",
        "entities.dead.mask.email: should be 'drop', 'null' or 'sha256'",
        "entities.order.partitions: should be a valid integer",
        "mask.key: should have 16 characters or more",
        'service.listen: should be "HOST:PORT", as in "127.0.0.1:9464"',
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            '[entities.order]\nmask = { a = "sha256" }\ntable = "orders"',
            'entities.order.mask: sha256 needs a secret; add [mask] key = "env:NAME"',
        ),
        ("[entities.order]", 'entities.order.table: is missing; add table = "SCHEMA.TABLE"'),
        ("", 'entities: nothing is to be published; add [tables] include = ["public.*"], or [entities.X]'),
        ("[tables]\ninclude = 5", "tables.include: should be a list"),
        ("[tables]\ninclude = ['*']\n[entities]\norder = 5", "entities.order: should be a table"),
    ],
)
def test_what_does_not_fit_together(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(f"name = 'a'\nsource = {{ kind = 'postgres', dsn = 'dbname=a' }}\nsink = {{ path = 'x' }}\n{text}")
    assert refusal(path, {}) == [f"{path}: {problem}"]


@pytest.mark.parametrize("dsn", ["opensesame", "postgresql://ada:opensesame@[", "password=opensesame port"])
def test_a_malformed_dsn_is_not_quoted(file: Path, dsn: str) -> None:
    (line,) = refusal(file, {"DATABASE_URL": dsn})
    assert line.startswith(f"{file}: source.dsn: should be a connection string")
    assert "opensesame" not in line


def test_files_that_cannot_be_read(file: Path, tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.toml", {}) == [
        f"{tmp_path / 'none.toml'}: no such file; write one with `changelog init --dsn DSN`, or name it with --config"
    ]
    (tmp_path / "mask.key").unlink()
    assert refusal(file, ENVIRON) == [
        f"{file}: mask.key: {tmp_path / 'mask.key'} cannot be read (No such file or directory)"
    ]
    file.write_bytes(b"name = '\xff'")
    assert refusal(file, {}) == [f"{file}: is not UTF-8 at byte 8"]
    file.write_text("name =")
    assert refusal(file, {})[0].startswith(f"{file}: is not TOML: ")
