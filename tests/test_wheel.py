"""Tests that the built wheel can be installed, and works from an empty folder without any file of this checkout."""

import contextlib
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import threading
import venv
import zipfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from changelog.connectors.debezium.launch import OWN_JAR
from changelog.connectors.servers.kafka import temporary_broker
from changelog.connectors.servers.postgres import PostgresServer
from changelog.connectors.sinks.files.sink import FileSink
from changelog.envelope.columnar import batch
from changelog.envelope.model import Op
from changelog.envelope.position import Position
from tests.integration.kafka.test_producer import create, ids, read
from tests.integration.site import Site
from tests.patience import PROGRAM_S
from tests.servers import HASTY_JAVA, fresh_database, java_needed, kafka_lib, missing
from tests.unit import records as made

pytestmark = pytest.mark.xdist_group("wheel")  # one worker builds the wheel, once

CHECKOUT = Path(__file__).parents[1]
JOBS = sorted(file.stem for file in (CHECKOUT / "spark_jobs").glob("*.py") if "\nJOB = Job(" in file.read_text("utf-8"))
WORK = {
    "archive": ["--compact"],
    "blame": ["--to", "blame"],
    "derive_deltas": ["--output", "deltas"],
}
"""Each job's arguments for a run over a file log. The jobs that are missing here have tests of their own below."""

OURS = ("connectors", "envelope", "schemas", "spark_jobs")
PUBLISHING = """
import json, sys
from datetime import UTC, datetime
from pathlib import Path

import changelog, connectors, envelope, schemas, spark_jobs
from changelog.connectors.producer import ChangelogProducer, Event
from changelog.connectors.sinks.files.log import read_log
from changelog.envelope.model import Stamp
from changelog.envelope.stamp import content

servers, log = sys.argv[1:]
event = Event(entity="viewed", id="e-1", key=("7",), state={"id": 7}, at=datetime.now(UTC))
with ChangelogProducer(servers, prefix="application", service_name="web", instance="web-0") as producer:
    producer.publish([event])
print(json.dumps({
    "owners": [package.OWNER for package in (connectors, envelope, schemas, spark_jobs)],
    "stamp": json.loads(content(Stamp(service_name="web", api_version="v3", identifier="req-1"))),
    "rows": sum(batch.num_rows for batch in read_log(Path(log))),
    "changes": len(list(changelog.open(log).changes())),
}))
"""
"""A program of an application. It makes a stamp, publishes an event and reads the changelog."""
REPORTING = """
import json, sys
from pathlib import Path

import schemas
from pyspark.sql import SparkSession
from changelog.envelope import Position
from changelog.spark_jobs.reading import Files, read_changelog


def ordinals(batches):
    for batch in batches:
        yield batch.from_pydict({
            "ordinal": [Position.parse(text).ordinal for text in batch["position"].to_pylist()],
            "owner": [schemas.OWNER] * batch.num_rows,
        })


spark = SparkSession.builder.getOrCreate()
changes = read_changelog(spark, Files(path=Path(sys.argv[1])), entities=["order"]).select("position")
rows = changes.mapInArrow(ordinals, "ordinal long, owner string").collect()
print(json.dumps(sorted([row.ordinal, row.owner] for row in rows)))
"""
"""A Spark program of an application. Its workers import our packages and those of the application."""


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": str(cwd), "PYTHONSAFEPATH": "1", **variables}
    process = subprocess.run(
        command, check=False, cwd=cwd, env=environment, capture_output=True, text=True, timeout=PROGRAM_S
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def changelog(installed: Path, *arguments: str, cwd: Path) -> str:
    return run(installed / "python", "-W", "error", installed / "changelog", *arguments, cwd=cwd)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment in which the wheel is installed. The wheel's dependencies come from the
    environment that runs the tests.
    """
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder, cwd=CHECKOUT)
    (wheel,) = folder.glob("changelog_publisher-*.whl")
    home = folder / "venv"
    venv.create(home, symlinks=True)
    run(sys.executable, "-m", "pip", "--python", home, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    # This .pth file only appends our site-packages folder to sys.path. Python ignores the .pth files of a folder that
    # was added in this way, so the editable install of the checkout has no effect.
    packages = sysconfig.get_path("purelib", "venv", {"base": str(home), "platbase": str(home)})
    Path(packages, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    return home / "bin"


@pytest.fixture
def application(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an application. Its own packages have the same names as our folders."""
    folder = tmp_path_factory.mktemp("application")
    for name in OURS:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text('OWNER = "the application"\n', "utf-8")
    (folder / "publishing.py").write_text(PUBLISHING, "utf-8")
    (folder / "reporting.py").write_text(REPORTING, "utf-8")
    return folder


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    return tmp_path


def test_the_wheel_contains_one_package_and_declares_its_types(installed: Path, empty: Path) -> None:
    (wheel,) = installed.parents[1].glob("changelog_publisher-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"changelog", "changelog_publisher"}
    assert {name.split("/")[1] for name in names if name.count("/") > 1 and "dist-info" not in name} == {*OURS}
    assert "changelog/py.typed" in names
    package_path = run(installed / "python", "-c", "import changelog; print(*changelog.__path__)", cwd=empty).strip()
    assert Path(package_path).is_relative_to(installed.parent)


def test_the_wheel_contains_our_jar_for_debezium_but_no_jar_of_debezium(installed: Path, empty: Path) -> None:
    if not OWN_JAR.exists():
        missing("the jar of the Debezium process was not built: make engine")
    (wheel,) = installed.parents[1].glob("changelog_publisher-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    jar = "changelog/connectors/debezium/changelog-debezium.jar"
    assert [name for name in names if name.endswith((".jar", ".java"))] == [jar]
    code = "from changelog.debezium import DebeziumEngine, FileStore; DebeziumEngine({}, store=FileStore('state'))"
    run(installed / "python", "-W", "error", "-c", code, cwd=empty)
    assert "<artifactId>debezium-postgres</artifactId>" in changelog(
        installed, "debezium", "pom", "postgres", cwd=empty
    )


def test_the_wheel_contains_the_pages_of_the_console(installed: Path) -> None:
    (wheel,) = installed.parents[1].glob("changelog_publisher-*.whl")
    contents = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith(".py")}
    console = CHECKOUT / "connectors" / "console"
    files = [file for folder in ("templates", "static") for file in (console / folder).iterdir()]
    assert len(files) > 10
    assert {f"changelog/{file.relative_to(CHECKOUT)}" for file in files} <= contents


def test_the_source_distribution_contains_the_packages_and_no_tests(empty: Path) -> None:
    run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", empty, cwd=CHECKOUT)
    (archive,) = empty.glob("changelog_publisher-*.tar.gz")
    with tarfile.open(archive) as files:
        paths = [Path(*Path(name).parts[1:]) for name in files.getnames()]
    assert {path.parts[0] for path in paths if len(path.parts) > 1} == {"changelog"}
    assert any(path.name == "Encoder.java" for path in paths)


def test_the_wheel_of_stamps_works_without_any_other_package(empty: Path) -> None:
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", empty, cwd=CHECKOUT / "stamps")
    (wheel,) = empty.glob("changelog_stamps-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"changelog_stamps"}
    assert "changelog_stamps/py.typed" in names
    code = (
        "import sys; sys.path.append(sys.argv[1]); from changelog_stamps import stamp, sqlcommenter, web; print('ok')"
    )
    assert run(sys.executable, "-I", "-S", "-W", "error", "-c", code, wheel, cwd=empty) == "ok\n"


def test_the_command_prints_its_usage(installed: Path, empty: Path) -> None:
    assert "usage: changelog" in changelog(installed, "--help", cwd=empty)
    assert "usage: changelog" in run(installed / "python", "-m", "changelog", "--help", cwd=empty)
    assert not list(empty.iterdir())


def test_the_wheel_declares_all_its_dependencies(installed: Path, empty: Path) -> None:
    output = run(sys.executable, "-m", "pip", "--python", installed / "python", "check", cwd=empty)
    assert "No broken requirements found" in output


@pytest.mark.usefixtures("starts_servers")
def test_the_demo_needs_nothing_but_the_wheel(installed: Path, empty: Path) -> None:
    output = changelog(installed, "demo", "--seconds", "1", cwd=empty)
    assert ".parquet" in output or "log/" in output


def installed_job(installed: Path, name: str, cwd: Path) -> Path:
    """Returns the file of an installed job. Finds it in the way that docs/how-to/spark.md describes."""
    code = "import changelog.spark_jobs as jobs; print(jobs.__path__[0])"
    return Path(run(installed / "python", "-c", code, cwd=cwd).strip(), f"{name}.py")


def submit(
    installed: Path, job: str | Path, *arguments: str, cwd: Path, terminal: int | None = None, path: Path | None = None
) -> str:
    """Submits an installed job or a file with `spark-submit`. Returns its output, or writes it to `terminal`.

    Python searches the folder `path` first, on the driver and on the workers.
    """
    environment = {"PATH": os.environ["PATH"], "HOME": str(cwd), "PYSPARK_PYTHON": str(installed / "python")}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    settings = (
        "spark.sql.shuffle.partitions=2",
        "spark.ui.enabled=false",
        "spark.driver.bindAddress=127.0.0.1",
        "spark.driver.host=127.0.0.1",
    )
    command: list[str | Path] = [
        *(Path(sys.executable).with_name("spark-submit"), "--master", "local[2]", "--driver-memory", "1g"),
        *("--driver-java-options", HASTY_JAVA),
        *(word for setting in settings for word in ("--conf", setting)),
        job if isinstance(job, Path) else installed_job(installed, job, cwd),
        *arguments,
    ]
    process = subprocess.run(
        command,
        check=False,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL if terminal is None else terminal,
        stdout=subprocess.PIPE if terminal is None else terminal,
        stderr=subprocess.PIPE if terminal is None else terminal,
        text=True,
        timeout=PROGRAM_S,
    )
    assert process.returncode == 0, f"{process.stdout}{process.stderr}"
    return process.stdout or ""


@pytest.fixture
def configuration(empty: Path) -> Path:
    """The configuration of a file log that holds two changes."""
    with closing(FileSink(empty / "log")) as sink:
        sink.recover()
        rows = [made.record(Op.CREATE, '{"id":42}'), made.record(Op.UPDATE, '{"id":42,"n":1}', '{"id":42}', ordinal=4)]
        sink.add([batch.from_records(rows)])
        sink.commit(replace(made.checkpoint(1), position=Position(1, 1, 4), settings={"order": {}}))
    file = empty / "changelog.toml"
    source = 'source = { kind = "postgres", dsn = "postgresql://nowhere" }'
    file.write_text(f'name = "booking"\n{source}\nsink = {{ path = "log" }}\ntables = {{ include = ["*"] }}\n', "utf-8")
    return file


@pytest.mark.usefixtures("starts_servers")
@pytest.mark.parametrize("job", WORK)
def test_a_job_runs_where_an_application_has_packages_with_our_names(
    installed: Path, configuration: Path, application: Path, tmp_path_factory: pytest.TempPathFactory, job: str
) -> None:
    java_needed()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    output = submit(installed, job, "--config", str(configuration), *WORK[job], cwd=elsewhere, path=application)
    summary = json.loads(output.splitlines()[-1])
    assert (summary["job"], summary["verdict"]) == (job, "done")


def test_jobs_that_need_a_database_run_from_an_empty_folder(
    installed: Path, server: PostgresServer, empty: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    java_needed()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    with fresh_database(server) as dsn:
        site = Site(dsn, empty)
        site.sql("CREATE TABLE thing (id int PRIMARY KEY)", "INSERT INTO thing VALUES (1), (2)")
        site.configure('[entities.thing]\ntable = "public.thing"\n[views.things]\nentity = "thing"\n')
        with site.running() as service:
            service.until(lambda: len(site.state("thing")) == 2)
            output = submit(installed, "detect_drift", "--config", str(site.config), cwd=elsewhere)
        (elsewhere / "dsn").write_text(dsn, "utf-8")
        view = ("--view", "things", "--output", "postgres", "--to", "things", "--dsn", "file:dsn", "--available-now")
        maintained = submit(installed, "maintain_view", "--config", str(site.config), *view, cwd=elsewhere)
    assert json.loads(maintained.splitlines()[-1])["rows"] == 2
    summary = json.loads(output.splitlines()[-1])
    assert (summary["verdict"], summary["sourceRows"], summary["changelogRows"]) == ("clean", 2, 2)
    assert (elsewhere / summary["report"]).is_file()


@pytest.mark.usefixtures("starts_servers")
def test_a_job_in_a_terminal_shows_its_progress(installed: Path, configuration: Path, empty: Path) -> None:
    java_needed()
    shutil.copytree(CHECKOUT / "schemas", empty / "schemas", ignore=shutil.ignore_patterns("*.py*"))
    terminal, job_terminal = pty.openpty()
    chunks: list[bytes] = []

    def read_terminal() -> None:
        with contextlib.suppress(OSError):  # raised after the job has closed its side of the terminal
            while True:
                chunks.append(os.read(terminal, 65536))

    reader = threading.Thread(target=read_terminal)
    reader.start()
    arguments = ("--entity", "order", "--to", "view", "--schemas", "schemas")
    try:
        submit(installed, "rebuild_view", "--config", str(configuration), *arguments, cwd=empty, terminal=job_terminal)
    finally:
        os.close(job_terminal)
        reader.join()
        os.close(terminal)
    text = b"".join(chunks).decode()
    assert re.search(r"\[Stage \d+:", text), text
    assert json.loads(text.splitlines()[-1])["verdict"] == "done"


@pytest.mark.usefixtures("starts_servers")
def test_an_application_with_packages_of_our_names_can_stamp_publish_and_read(
    installed: Path, configuration: Path, application: Path
) -> None:
    log = str(configuration.parent / "log")
    # The fixture `broker` is not used here, because the tests that share it may be on another worker of pytest-xdist.
    # On this worker, the fixture would start a second broker, which would run until the end of the session.
    with temporary_broker(kafka_lib()) as broker:
        create(broker, "application.viewed")
        words = ("publishing.py", broker.bootstrap_servers, log)
        output = run(installed / "python", *words, cwd=application, PYTHONSAFEPATH="")
        assert ids(read(broker, "application.viewed")) == ["e-1"]
    stamp = {"serviceName": "web", "apiVersion": "v3", "identifier": "req-1"}
    owners = ["the application"] * len(OURS)
    assert json.loads(output.splitlines()[-1]) == {"owners": owners, "stamp": stamp, "rows": 2, "changes": 2}


@pytest.mark.usefixtures("starts_servers")
def test_an_application_with_packages_of_our_names_can_read_in_spark(
    installed: Path, configuration: Path, application: Path
) -> None:
    java_needed()
    log = configuration.parent / "log"
    output = submit(installed, application / "reporting.py", str(log), cwd=application, path=application)
    assert json.loads(output.splitlines()[-1]) == [[2, "the application"], [4, "the application"]]


def test_every_job_is_tested_here() -> None:
    assert {*WORK, "rebuild_view", "detect_drift", "maintain_view"} == {*JOBS}
