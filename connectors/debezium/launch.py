"""Gives what is needed to start the Debezium process: the settings, the jars, and the command line."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from changelog.envelope.errors import ChangelogError, Kind

OWN_JAR = Path(__file__).resolve().parent / "changelog-debezium.jar"
"""Our part of the Debezium process. `make engine` builds this jar, and the wheel contains it."""

MAIN = "changelog.debezium.Main"

LOGGING = "slf4j-jdk14-*.jar"
"""The binding of slf4j through which Debezium's log reaches us. `jars.install` adds it to each set of jars."""
OTHER_LOGGING = ("log4j-slf4j*.jar", "logback-classic-*.jar", "slf4j-simple-*.jar", "slf4j-reload4j-*.jar")
"""Other bindings of slf4j. If ours is in the folder, these stay off the class path, because slf4j uses only one."""

RESERVED = ("offset.storage", "schema.history.internal", "errors.max.retries")
"""Users cannot set these properties, because they decide where the connector continues. The first entry stands for all
properties that begin with it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to run the engine.

    `properties` are Debezium's, without those in `RESERVED`. `jars` is the folder with Debezium's jars. `heap_mib` is
    the size of Java's heap; the whole process takes about 150 MiB more. At most `in_flight_bytes` of records are sent
    before they are acknowledged. A frame has about `frame_bytes` of records, or one larger record. If the engine has
    not stopped `stop_s` seconds after a request to stop, its process is killed. Log lines below `log_level` (DEBUG,
    INFO, WARNING or ERROR) are not sent to Python.
    """

    properties: Mapping[str, str]
    jars: Path
    heap_mib: int = 512
    in_flight_bytes: int = 16 << 20
    frame_bytes: int = 1 << 20
    stop_s: float = 20.0
    log_level: str = "INFO"

    def command(self, java: str) -> list[str]:
        """Returns the command line. Raises ChangelogError (PRECONDITION) if jars are missing."""
        memory = [
            f"-Xms{min(32, self.heap_mib)}m",
            f"-Xmx{self.heap_mib}m",
            "-XX:+UseSerialGC",
            "-XX:+ExitOnOutOfMemoryError",
        ]
        output = ["-XX:+DisplayVMOutputToStderr", "-Xlog:disable", "-Xlog:all=error:stderr"]  # stdout is for frames
        return [java, *memory, *output, "-Djava.awt.headless=true", "-cp", _class_path(self.jars), MAIN]

    def configuration(self) -> Mapping[str, object]:
        """Returns the content of the first command, from which the process takes its settings.

        Raises ChangelogError (USAGE) if a reserved property is set, or if `connector.class` is missing.
        """
        for name in self.properties:
            if name.startswith("offset.storage") or name in RESERVED:
                raise ChangelogError(
                    Kind.USAGE,
                    f"the property {name} is managed by the engine",
                    hint="remove it from the connector's properties",
                )
        if "connector.class" not in self.properties:
            raise ChangelogError(
                Kind.USAGE,
                "connector.class is missing",
                hint='name the connector, for example "io.debezium.connector.postgresql.PostgresConnector"',
            )
        ours = {
            "name": self.properties.get("topic.prefix", "changelog"),
            "schema.history.internal": "changelog.debezium.History",
            # If the connector connected again within this process, it would begin after the last acknowledged record,
            # and records in flight would come twice. So only a new process connects again.
            "errors.max.retries": "0",
            # These headers name the connector and its task. They are the same in every record, and nothing here reads
            # them.
            "extended.headers.enabled": "false",
        }
        return {
            "properties": {**ours, **self.properties},
            "in_flight_bytes": self.in_flight_bytes,
            "frame_bytes": self.frame_bytes,
            "stop_ms": int(self.stop_s * 1000),
            "log_level": {"ERROR": "SEVERE", "DEBUG": "FINE"}.get(self.log_level, self.log_level),
        }


def _class_path(folder: Path) -> str:
    if not OWN_JAR.exists():
        raise ChangelogError(
            Kind.PRECONDITION,
            f"{OWN_JAR.name} is not in this installation",
            hint="`make engine` in a checkout builds it (needs Java 17 and Maven); `make wheel` builds a wheel with it",
        )
    others = {jar for pattern in OTHER_LOGGING for jar in folder.glob(pattern)} if any(folder.glob(LOGGING)) else set()
    jars = sorted(set(folder.glob("*.jar")) - others)
    return ":".join(map(str, [OWN_JAR, *(jar.absolute() for jar in jars)]))
