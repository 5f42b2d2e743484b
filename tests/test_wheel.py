"""The wheel that is built installs, and works from an empty folder with nothing of this checkout in reach."""

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
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from connectors.servers.postgres import Server
from connectors.sinks.files.sink import FileSink
from envelope.columnar import batch
from envelope.model import Op
from envelope.position import Position
from tests.integration.site import Site
from tests.patience import PROGRAM_S
from tests.servers import HASTY_JAVA, fresh_database, java_needed
from tests.unit import records as made

pytestmark = pytest.mark.xdist_group("wheel")  # it is built once

CHECKOUT = Path(__file__).parents[1]
JOBS = sorted(file.stem for file in (CHECKOUT / "spark_jobs").glob("*.py") if "\nJOB = Job(" in file.read_text("utf-8"))
WORK = {
    "archive": ["--compact"],
    "derive_deltas": ["--output", "deltas"],
}
"""What a job is asked to do with a file log; the others have tests of their own."""


def run(*command: str | Path, cwd: Path) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": str(cwd), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        command, check=False, cwd=cwd, env=environment, capture_output=True, text=True, timeout=PROGRAM_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def changelog(installed: Path, *arguments: str, cwd: Path) -> str:
    return run(installed / "python", "-W", "error", installed / "changelog", *arguments, cwd=cwd)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment that holds the wheel; its dependencies come from the one we run in."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder, cwd=CHECKOUT)
    (wheel,) = folder.glob("changelog_publisher-*.whl")
    home = folder / "venv"
    venv.create(home, symlinks=True)
    run(sys.executable, "-m", "pip", "--python", home, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    # A path in a .pth file is only added: the checkout's own editable install, itself a .pth file there, is not read.
    packages = sysconfig.get_path("purelib", "venv", {"base": str(home), "platbase": str(home)})
    Path(packages, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    return home / "bin"


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    return tmp_path


def test_the_wheel_holds_its_packages_typed_and_nothing_else(installed: Path, empty: Path) -> None:
    packages = "connectors, envelope, schemas, spark_jobs"
    code = f"import {packages}; print(*(p.__path__[0] for p in ({packages})))"
    for place in map(Path, run(installed / "python", "-c", code, cwd=empty).split()):
        assert place.is_relative_to(installed.parent)
        assert (place / "py.typed").exists()
        assert not (place.parent / "tests").exists()


def test_the_source_distribution_holds_the_packages_and_no_tests(empty: Path) -> None:
    run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", empty, cwd=CHECKOUT)
    (archive,) = empty.glob("changelog_publisher-*.tar.gz")
    with tarfile.open(archive) as files:
        folders = {path.parts[1] for path in map(Path, files.getnames()) if len(path.parts) > 2}
    assert folders == {"connectors", "envelope", "schemas", "spark_jobs"}


def test_the_command_says_what_it_can_do(installed: Path, empty: Path) -> None:
    assert "usage: changelog" in changelog(installed, "--help", cwd=empty)
    assert "usage: changelog" in run(installed / "python", "-m", "connectors", "--help", cwd=empty)
    assert not list(empty.iterdir())


def test_the_wheel_asks_for_all_that_it_needs(installed: Path, empty: Path) -> None:
    told = run(sys.executable, "-m", "pip", "--python", installed / "python", "check", cwd=empty)
    assert "No broken requirements found" in told


@pytest.mark.usefixtures("starts_servers")
def test_the_demo_needs_nothing_but_the_wheel(installed: Path, empty: Path) -> None:
    told = changelog(installed, "demo", "--seconds", "1", cwd=empty)
    assert ".parquet" in told or "log/" in told


def submit(installed: Path, job: str, *arguments: str, cwd: Path, terminal: int | None = None) -> str:
    """What `spark-submit` of an installed job prints; with a `terminal`, it prints all of it there."""
    purelib = run(installed / "python", "-c", "import spark_jobs; print(spark_jobs.__path__[0])", cwd=cwd).strip()
    environment = {"PATH": os.environ["PATH"], "HOME": str(cwd), "PYSPARK_PYTHON": str(installed / "python")}
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
        Path(purelib, f"{job}.py"),
        *arguments,
    ]
    done = subprocess.run(
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
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout or ""


@pytest.fixture
def configuration(empty: Path) -> Path:
    """Of a file log that holds two changes."""
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
def test_a_job_is_submitted_from_an_empty_folder(
    installed: Path, configuration: Path, empty: Path, tmp_path_factory: pytest.TempPathFactory, job: str
) -> None:
    java_needed()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    told = submit(installed, job, "--config", str(configuration), *WORK[job], cwd=elsewhere)
    summary = json.loads(told.splitlines()[-1])
    assert (summary["job"], summary["verdict"]) == (job, "done")


def test_the_comparison_is_submitted_from_an_empty_folder(
    installed: Path, server: Server, empty: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    java_needed()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    with fresh_database(server) as dsn:
        site = Site(dsn, empty)
        site.sql("CREATE TABLE thing (id int PRIMARY KEY)", "INSERT INTO thing VALUES (1), (2)")
        site.configure('[entities.thing]\ntable = "public.thing"\n')
        with site.running() as service:
            service.until(lambda: len(site.state("thing")) == 2)
            told = submit(installed, "detect_drift", "--config", str(site.config), cwd=elsewhere)
    summary = json.loads(told.splitlines()[-1])
    assert (summary["verdict"], summary["sourceRows"], summary["changelogRows"]) == ("clean", 2, 2)
    assert (elsewhere / summary["report"]).is_file()


@pytest.mark.usefixtures("starts_servers")
def test_a_person_sees_how_far_a_job_is(installed: Path, configuration: Path, empty: Path) -> None:
    java_needed()
    shutil.copytree(CHECKOUT / "schemas", empty / "schemas", ignore=shutil.ignore_patterns("*.py*"))
    ours, theirs = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # nobody writes there any more
            while True:
                shown.append(os.read(ours, 65536))

    reading = threading.Thread(target=read)
    reading.start()
    view = ("--entity", "order", "--to", "view", "--schemas", "schemas")
    try:
        submit(installed, "rebuild_view", "--config", str(configuration), *view, cwd=empty, terminal=theirs)
    finally:
        os.close(theirs)
        reading.join()
        os.close(ours)
    text = b"".join(shown).decode()
    assert re.search(r"\[Stage \d+:", text), text
    assert json.loads(text.splitlines()[-1])["verdict"] == "done"


def test_every_job_is_submitted() -> None:
    assert {*WORK, "rebuild_view", "detect_drift"} == {*JOBS}
