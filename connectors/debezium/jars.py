"""Debezium's jars: for which connectors a complete set is known, where the set is, and how Maven fetches it.

All jars of Debezium in a folder have the same version: jars of different versions fail with NoSuchMethodError. Each
version here is the newest for which Maven Central has the connector and everything that the connector needs.
"""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from changelog.envelope.errors import ChangelogError, Kind

MANIFEST = "changelog-jars.json"
"""The file with the names and sizes of the jars that `install` put into a folder. It is written last."""

EMBEDDED = "debezium-embedded-*.jar"
INSTALL_MAVEN = "install it (Debian: apt-get install maven), or run `changelog debezium pom` and Maven elsewhere"

_LOGGING = "org.slf4j:slf4j-jdk14:1.7.36"
_PLUGIN = "3.8.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connector:
    """A connector of Debezium. `drivers` are Maven coordinates of jars that it needs but does not declare."""

    name: str
    java_class: str
    version: str
    drivers: Sequence[str] = ()


CONNECTORS: Mapping[str, Connector] = {
    name: Connector(name=name, java_class=f"io.debezium.connector.{java_class}", version=version, drivers=drivers)
    for name, java_class, version, drivers in (
        ("postgres", "postgresql.PostgresConnector", "3.6.1.Final", ()),
        ("mysql", "mysql.MySqlConnector", "3.6.1.Final", ()),
        ("mariadb", "mariadb.MariaDbConnector", "3.5.0.Final", ()),
        ("sqlserver", "sqlserver.SqlServerConnector", "3.6.1.Final", ()),
        ("mongodb", "mongodb.MongoDbConnector", "3.6.1.Final", ()),
        ("db2", "db2.Db2Connector", "3.6.1.Final", ("com.ibm.db2:jcc:11.5.9.0",)),
        ("vitess", "vitess.VitessConnector", "3.5.0.Final", ()),
        ("spanner", "spanner.SpannerConnector", "3.6.1.Final", ()),
    )
}


def default_folder(connector: Connector, environment: Mapping[str, str], version: str | None = None) -> Path:
    """Returns the folder into which a connector's jars are installed, unless the user names another one."""
    data = environment.get("XDG_DATA_HOME") or Path(environment.get("HOME", "~")).expanduser() / ".local" / "share"
    return Path(data, "changelog", "debezium", version or connector.version, connector.name)


def find(java_class: str, path: Path | None, environment: Mapping[str, str]) -> Path:
    """Returns the folder with the jars for a connector class: `path`, or the folder into which `install` put them.

    Raises ChangelogError (PRECONDITION) if a jar is missing.
    """
    connector = next((candidate for candidate in CONNECTORS.values() if candidate.java_class == java_class), None)
    if path is None and connector is None:
        raise ChangelogError(
            Kind.PRECONDITION,
            f"it is not known where the jars of {java_class} are",
            hint=f"pass their folder as jars; `changelog debezium install` knows {', '.join(CONNECTORS)}",
        )
    name = connector.name if connector else "CONNECTOR"
    if path is not None:
        folder = path
    else:
        assert connector
        folder = default_folder(connector, environment)
    if not any(folder.glob(EMBEDDED)):
        to = f" --to {folder}" if path is not None else ""
        by_hand = f"`changelog debezium pom {name}` prints a pom.xml for `{_by_hand(folder)}`"
        raise ChangelogError(
            Kind.PRECONDITION,
            f"Debezium's jars are not in {folder}",
            hint=f"`changelog debezium install {name}{to}` fetches them (it needs Maven); {by_hand}",
        )
    _check_complete(folder, name)
    return folder


def pom(connector: Connector, version: str | None = None) -> str:
    """Returns a pom.xml that names everything that the connector needs."""
    debezium = version or connector.version
    coordinates = [
        f"io.debezium:debezium-embedded:{debezium}",
        f"io.debezium:debezium-connector-{connector.name}:{debezium}",
        _LOGGING,
        *connector.drivers,
    ]
    dependencies = "\n".join(map(_dependency, coordinates))
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>changelog</groupId>
  <artifactId>debezium-{connector.name}</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{dependencies}
  </dependencies>
  <build>
    <plugins>
      <plugin>
        <groupId>org.apache.maven.plugins</groupId>
        <artifactId>maven-dependency-plugin</artifactId>
        <version>{_PLUGIN}</version>
      </plugin>
    </plugins>
  </build>
</project>
"""


def install(connector: Connector, folder: Path, version: str | None = None) -> int:
    """Fetches a connector with all its jars, replaces `folder` by them in one step, and returns the number of jars.

    Raises ChangelogError: PRECONDITION if Maven is missing or cannot fetch a jar, or if the folder holds other files.
    """
    maven = shutil.which("mvn")
    if maven is None:
        raise ChangelogError(
            Kind.PRECONDITION, "Maven is missing", hint=f"{INSTALL_MAVEN}, or see docs/how-to/debezium-engine.md"
        )
    if folder.exists() and any(folder.iterdir()) and not (folder / MANIFEST).exists():
        raise ChangelogError(
            Kind.PRECONDITION,
            f"{folder} holds files that this command did not put there",
            hint="choose an empty folder with --to",
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        project, jars = Path(scratch, "pom.xml"), Path(scratch, "jars")
        project.write_text(pom(connector, version), "utf-8")
        command = [maven, "--quiet", "--batch-mode", "--strict-checksums", "-Dstyle.color=never", f"--file={project}"]
        process = subprocess.run(
            [*command, "dependency:copy-dependencies", f"-DoutputDirectory={jars}"],
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        if process.returncode != 0:
            raise _unfetched(connector, version, process.stdout)
        _check_set(connector, version or connector.version, jars)
        sizes = {jar.name: jar.stat().st_size for jar in sorted(jars.glob("*.jar"))}
        manifest = {"connector": connector.name, "version": version or connector.version, "jars": sizes}
        (jars / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")
        jars.chmod(0o755)
        if folder.exists():
            folder.rename(Path(scratch, "replaced"))
        jars.rename(folder)
    return len(sizes)


def _check_set(connector: Connector, version: str, jars: Path) -> None:
    """Raises ChangelogError (PRECONDITION) if the jars that Maven copied do not work together."""
    expected = (f"debezium-embedded-{version}.jar", f"debezium-connector-{connector.name}-{version}.jar")
    absent = [name for name in expected if not (jars / name).exists()]
    others = [jar.name for jar in jars.glob("debezium-*.jar") if not jar.name.endswith(f"-{version}.jar")]
    if absent or others:
        names = ", ".join(absent + others)
        raise ChangelogError(Kind.PRECONDITION, f"the jars for {connector.name} {version} do not fit together: {names}")


def _check_complete(folder: Path, name: str) -> None:
    manifest = folder / MANIFEST
    if not manifest.exists():  # a folder that somebody else filled
        return
    sizes: Mapping[str, int] = json.loads(manifest.read_text("utf-8"))["jars"]
    for jar, size in sizes.items():
        if not (folder / jar).exists() or (folder / jar).stat().st_size != size:
            raise ChangelogError(
                Kind.PRECONDITION,
                f"{folder / jar} is missing or damaged",
                hint=f"`changelog debezium install {name} --to {folder}` fetches the set again",
            )


def _unfetched(connector: Connector, version: str | None, output: str) -> ChangelogError:
    line = next((line for line in output.splitlines() if "ERROR" in line), "it said nothing")
    reason = re.sub(r"^.*?\[ERROR\] |Failed to execute goal on project \S+: | -> \[Help 1\].*", "", line)
    return ChangelogError(
        Kind.PRECONDITION,
        f"Maven cannot fetch {connector.name} {version or connector.version}: {reason}",
        hint="check the network, the proxy in ~/.m2/settings.xml, and the version",
    )


def _dependency(coordinates: str) -> str:
    group, artifact, version = coordinates.split(":")
    tags = {"groupId": group, "artifactId": artifact, "version": version}
    lines = [f"      <{tag}>{escape(value)}</{tag}>" for tag, value in tags.items()]
    return "\n".join(["    <dependency>", *lines, "    </dependency>"])


def _by_hand(folder: Path) -> str:
    return f"mvn dependency:copy-dependencies -DoutputDirectory={folder}"
