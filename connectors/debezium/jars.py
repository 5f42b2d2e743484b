"""Says for which connectors of Debezium a complete set of jars is known, and where the jars are.

All jars of Debezium in a folder have the same version: jars of different versions fail with NoSuchMethodError. Each
version here is the newest for which Maven Central has the connector and everything that the connector needs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from changelog.connectors.java import jars
from changelog.connectors.java.jars import MANIFEST, JarSet
from changelog.envelope.errors import ChangelogError, Kind

__all__ = ["CONNECTORS", "EMBEDDED", "MANIFEST", "Connector", "default_folder", "find", "install", "pom"]

EMBEDDED = "debezium-embedded-*.jar"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connector:
    """A connector of Debezium. `drivers` are Maven coordinates of jars that it needs, but its pom lacks."""

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
    return jars.data_folder(environment) / "debezium" / (version or connector.version) / connector.name


def find(java_class: str, path: Path | None, environment: Mapping[str, str]) -> Path:
    """Returns the folder with the jars for a connector class: `path`, or the folder into which `install` put them.

    Raises ChangelogError (PRECONDITION) if jars are missing or damaged, or if `path` is None and the class is none of
    `CONNECTORS`.
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
        by_hand = f"`changelog debezium pom {name}` prints a pom.xml for `{jars.by_hand(folder)}`"
        raise ChangelogError(
            Kind.PRECONDITION,
            f"Debezium's jars are not in {folder}",
            hint=f"`changelog debezium install {name}{to}` fetches them (it needs Maven); {by_hand}",
        )
    jars.refuse_damaged(folder, f"changelog debezium install {name} --to {folder}")
    return folder


def pom(connector: Connector, version: str | None = None) -> str:
    """Returns a pom.xml that names everything that the connector needs."""
    return jars.pom(_set(connector, version or connector.version))


def install(connector: Connector, folder: Path, version: str | None = None) -> int:
    """Fetches all jars that a connector needs into a new folder, replaces `folder` by it, and returns how many jars
    these are.

    Raises the errors of `changelog.connectors.java.jars.install`.
    """
    fetched_version = version or connector.version
    jar_set = _set(connector, fetched_version)
    return jars.install(jar_set, folder, lambda new: _check_set(connector, fetched_version, new))


def _set(connector: Connector, version: str) -> JarSet:
    coordinates = (
        f"io.debezium:debezium-embedded:{version}",
        f"io.debezium:debezium-connector-{connector.name}:{version}",
        jars.LOGGING,
        *connector.drivers,
    )
    return JarSet(
        artifact=f"debezium-{connector.name}",
        title=f"{connector.name} {version}",
        coordinates=coordinates,
        pom_command="changelog debezium pom",
    )


def _check_set(connector: Connector, version: str, folder: Path) -> None:
    """Raises ChangelogError (PRECONDITION) if the jars that Maven copied do not work together."""
    expected = (f"debezium-embedded-{version}.jar", f"debezium-connector-{connector.name}-{version}.jar")
    absent = [name for name in expected if not (folder / name).exists()]
    others = [jar.name for jar in folder.glob("debezium-*.jar") if not jar.name.endswith(f"-{version}.jar")]
    if absent or others:
        names = ", ".join(absent + others)
        raise ChangelogError(Kind.PRECONDITION, f"the jars for {connector.name} {version} do not fit together: {names}")
