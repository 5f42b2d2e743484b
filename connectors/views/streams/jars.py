"""Names the jars of Kafka Streams, and finds their folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from changelog.connectors.java import jars
from changelog.connectors.java.jars import JarSet
from changelog.envelope.errors import ChangelogError, Kind

VERSION: Final = "4.1.1"

INSTALL: Final = "changelog views install"

JARS: Final = JarSet(
    artifact="kafka-streams",
    title=f"Kafka Streams {VERSION}",
    coordinates=(f"org.apache.kafka:kafka-streams:{VERSION}", jars.LOGGING),
    pom_command="changelog views pom",
)

_STREAMS = "kafka-streams-*.jar"


def default_folder(environment: Mapping[str, str]) -> Path:
    """Returns the folder into which the jars are installed, unless the user names another one."""
    return jars.data_folder(environment) / "kafka-streams" / VERSION


def find(path: Path | None, environment: Mapping[str, str]) -> Path:
    """Returns the folder with the jars: `path`, or the folder into which `changelog views install` puts them.

    Raises ChangelogError (PRECONDITION) if a jar is missing.
    """
    folder = default_folder(environment) if path is None else path
    command = INSTALL if path is None else f"{INSTALL} --to {path}"
    if not any(folder.glob(_STREAMS)):
        raise ChangelogError(
            Kind.PRECONDITION,
            f"the jars of Kafka Streams are not in {folder}",
            hint=f"`{command}` fetches them (it needs Maven); `{JARS.pom_command}` prints a pom.xml for "
            f"`{jars.by_hand(folder)}`",
        )
    jars.refuse_damaged(folder, command)
    return folder
