"""Tests docker-compose.yml and Dockerfile without running Docker: they are valid, and everything that they name
exists.
"""

import json
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from changelog.connectors.config import MysqlConfig, load
from changelog.connectors.servers.mysql import DEFAULT_SETTINGS, FLAVOUR_SETTINGS, PROGRAMS, Flavour
from changelog.connectors.service.metrics import Metrics
from changelog.connectors.sources.mysql.session.address import Address
from changelog.connectors.views.http.metrics import ViewMetrics

CHECKOUT = Path(__file__).parents[2]
SETUP = CHECKOUT / "docs" / "compose"
DASHBOARD = json.loads((SETUP / "grafana" / "dashboards" / "changelog.json").read_text("utf-8"))


def yaml(file: Path) -> Any:
    return YAML(typ="safe").load(file)


COMPOSE = yaml(CHECKOUT / "docker-compose.yml")
SERVICES: dict[str, Any] = COMPOSE["services"]
DOCKERFILE = re.sub(r"\\\n\s*", "", (CHECKOUT / "Dockerfile").read_text("utf-8"))
BUILD, FINAL = re.split(r"^(?=FROM )", DOCKERFILE, flags=re.MULTILINE)[1:]


def instructions(stage: str, name: str) -> list[str]:
    return re.findall(rf"^{name} (.*)", stage, re.MULTILINE)


def test_the_compose_file_meets_the_specification() -> None:
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.compose-spec",
        "docker-compose.yml",
    ]
    process = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr


def test_all_services_exist_and_other_databases_are_optional() -> None:
    assert SERVICES.keys() == {
        *("postgres", "writer", "mysql", "mariadb", "kafka", "registry", "changelog", "prometheus", "grafana"),
        *("changelog-mysql", "changelog-mariadb"),
    }
    for database in ("mysql", "mariadb"):
        members = {name for name, service in SERVICES.items() if service.get("profiles") == [database]}
        assert members == {database, f"changelog-{database}"}


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_has_a_pinned_image_a_health_check_and_local_ports(name: str) -> None:
    service = SERVICES[name]
    assert re.fullmatch(r"[a-z/-]+:v?\d+\.\d+(\.\d+)?", service["image"]), "an image is pinned by its version"
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert "healthcheck" in service or "build" in service or name == "writer"
    for volume in service.get("volumes", ()):
        source = volume.split(":")[0]
        if source.startswith("."):
            assert (CHECKOUT / source).exists()
            assert volume.endswith(":ro")
        else:
            assert source in COMPOSE["volumes"]
    for other in service.get("depends_on", ()):
        assert "healthcheck" in SERVICES[other]


def test_the_ports_on_the_host_differ_and_can_be_changed() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    matches = [re.fullmatch(r"127\.0\.0\.1:\$\{([A-Z_]+_PORT):-(\d+)\}:\d+", port) for port in ports]
    assert all(matches), ports
    assert len({match[1] for match in matches if match}) == len({match[2] for match in matches if match}) == len(ports)


def test_kafka_advertises_the_port_that_it_has_on_the_host() -> None:
    advertised = SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert "OUTSIDE://127.0.0.1:${KAFKA_PORT:-9092}" in advertised
    assert SERVICES["kafka"]["ports"] == ["127.0.0.1:${KAFKA_PORT:-9092}:9092"]


def test_the_writer_runs_its_script() -> None:
    assert "--file=/writer.sql" in SERVICES["writer"]["command"][-1]
    assert "./docs/compose/writer.sql:/writer.sql:ro" in SERVICES["writer"]["volumes"]


def test_the_configuration_of_the_service_fits_the_other_services() -> None:
    config = load(SETUP / "changelog.toml", SERVICES["changelog"]["environment"])
    sink = tomllib.loads((SETUP / "changelog.toml").read_text("utf-8"))["sink"]
    assert (config.prefix, sink["bootstrap_servers"]) == ("booking", "kafka:19092")
    assert "INSIDE://kafka:19092" in SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert sink["registry"].startswith("http://registry:")
    assert "@postgres:5432/" in SERVICES["changelog"]["environment"]["DATABASE_URL"]
    tables = re.findall(r"CREATE TABLE (\w+)", (SETUP / "postgres.sql").read_text("utf-8"))
    assert {entity.table for entity in config.entities.values()} == {f"public.{table}" for table in tables}


@pytest.mark.parametrize("database", PROGRAMS)
def test_the_services_of_mysql_and_mariadb_fit_their_databases(database: Flavour) -> None:
    service = SERVICES[f"changelog-{database}"]
    config = load(SETUP / "mysql.toml", service["environment"])
    assert isinstance(config.source, MysqlConfig)
    address = Address.parse(config.source.dsn)
    script = (SETUP / "mysql.sql").read_text("utf-8")
    variables = SERVICES[database]["environment"]
    assert (config.prefix, address.host) == (f"booking-{database}", database)
    assert address.database == variables[f"{database.upper()}_DATABASE"]
    assert f"CREATE USER '{address.user}'@'%' IDENTIFIED BY '{address.password}';" in script
    granted = set(re.findall(r"GRANT SELECT ON (\S+)", script))
    assert {entity.table for entity in config.entities.values()} == granted
    assert "./docs/compose/mysql.sql:/docker-entrypoint-initdb.d/mysql.sql:ro" in SERVICES[database]["volumes"]
    assert "./docs/compose/mysql.toml:/etc/changelog/changelog.toml:ro" in service["volumes"]


@pytest.mark.parametrize("database", PROGRAMS)
def test_the_binary_logs_of_mysql_and_mariadb_have_whole_rows(database: Flavour) -> None:
    """The databases have the same options for the binary log as the servers that tests start.

    `log_bin` is not compared, because MySQL 8.4 writes a binary log by default.
    """
    options = dict(option.removeprefix("--").split("=") for option in SERVICES[database]["command"])
    chosen = {name.replace("-", "_"): value for name, value in options.items()}
    needed = {**DEFAULT_SETTINGS, **FLAVOUR_SETTINGS[database]}
    assert {name: value for name, value in needed.items() if name.startswith(("binlog_", "gtid_"))}.items() <= (
        chosen.items()
    )


def test_the_service_has_the_time_to_drain_and_no_more_rights_than_it_needs() -> None:
    service = SERVICES["changelog"]
    assert service["stop_grace_period"] == "45s"
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert [line.split(":")[0] for line in instructions(FINAL, "USER")] == ["10001"]
    assert instructions(FINAL, "ENTRYPOINT") == ['["changelog"]']  # in exec form, so that SIGTERM reaches the service
    assert json.loads(instructions(FINAL, "CMD")[0])[0] == "run"


def test_files_that_the_image_copies_exist_and_are_not_ignored() -> None:
    lines = (CHECKOUT / ".dockerignore").read_text("utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    included = [rule[1:] for rule in rules if rule.startswith("!")]
    copied = [source for line in instructions(BUILD, "COPY") for source in line.split()[:-1]]
    assert copied
    for source in copied:
        name = source.removeprefix("./")
        assert (CHECKOUT / name).exists()
        assert any(fnmatch(name, rule) for rule in included)
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))
    assert {*project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"], "requirements.lock"} <= set(copied)


def test_the_image_says_whether_it_is_healthy() -> None:
    [check] = instructions(FINAL, "HEALTHCHECK")
    program = json.loads(check.split(" CMD ")[1])
    assert program[:2] == ["python", "-c"]
    assert "'/live'" in program[2]
    compile(program[2], "HEALTHCHECK", "exec")
    [port] = instructions(FINAL, "EXPOSE")
    assert f"CHANGELOG__SERVICE__LISTEN=0.0.0.0:{port}" in FINAL
    assert f", {port}," in program[2]
    assert yaml(SETUP / "prometheus.yml")["scrape_configs"][0]["static_configs"] == [{"targets": [f"changelog:{port}"]}]


def test_prometheus_finds_its_rules() -> None:
    config = yaml(SETUP / "prometheus.yml")
    mounted = dict(volume.split(":")[:2] for volume in SERVICES["prometheus"]["volumes"])
    for rules in config["rule_files"]:
        [source] = [source for source, target in mounted.items() if target == rules]
        assert yaml(CHECKOUT / source)["groups"]
    assert [job["job_name"] for job in config["scrape_configs"]] == ["changelog"]


def test_grafana_finds_its_data_and_its_dashboard() -> None:
    [data] = yaml(SETUP / "grafana" / "provisioning" / "datasources" / "prometheus.yml")["datasources"]
    assert data["url"] == "http://prometheus:9090"
    assert "prometheus" in SERVICES
    [provider] = yaml(SETUP / "grafana" / "provisioning" / "dashboards" / "changelog.yml")["providers"]
    mounted = dict(volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"])
    assert mounted["./docs/compose/grafana/dashboards"] == provider["options"]["path"]
    uids = {target["datasource"]["uid"] for panel in DASHBOARD["panels"] for target in panel["targets"]}
    assert uids == {data["uid"]}


def test_the_dashboard_shows_every_metric_and_no_other() -> None:
    metrics = Metrics()
    metrics.position.info({"position": ""})
    texts = metrics.text().decode() + ViewMetrics().text().decode()
    known = set(re.findall(r"^# TYPE (\w+)", texts, re.MULTILINE))
    known = {name for name in known if name.startswith("changelog_") and not name.endswith("_created")}
    queries = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    named = set(re.findall(r"changelog_\w+", " ".join(queries)))
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in named} == known


def test_panels_do_not_overlap() -> None:
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert all(x < 24 for x, _ in cells)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
