"""Fetches sets of jars through Maven, and checks that a folder still has a complete set."""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from changelog.envelope.errors import ChangelogError, Kind

MANIFEST = "changelog-jars.json"
"""The file with the names and sizes of the jars that `install` put into a folder. It is written after the jars."""

LOGGING = "org.slf4j:slf4j-jdk14:1.7.36"
"""With this binding of slf4j, Java libraries log through `java.util.logging`, and a handler of ours takes the lines."""

_PLUGIN = "3.8.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class JarSet:
    """The jars with the Maven `coordinates`, and all jars that these need.

    `title` is what error texts call the set. `pom_command` is the command that prints the set's pom.xml.
    """

    artifact: str
    title: str
    coordinates: Sequence[str]
    pom_command: str


def data_folder(environment: Mapping[str, str]) -> Path:
    """Returns the folder in which this program keeps data for the user who runs it."""
    data = environment.get("XDG_DATA_HOME") or Path(environment.get("HOME", "~")).expanduser() / ".local" / "share"
    return Path(data, "changelog")


def pom(jars: JarSet) -> str:
    """Returns the text of a pom.xml that names the set's coordinates."""
    dependencies = "\n".join(map(_dependency, jars.coordinates))
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>changelog</groupId>
  <artifactId>{jars.artifact}</artifactId>
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


def by_hand(folder: Path) -> str:
    """Returns the command by which Maven fetches the jars of a pom.xml into a folder."""
    return f"mvn dependency:copy-dependencies -DoutputDirectory={folder}"


def install(jars: JarSet, folder: Path, check: Callable[[Path], None] = lambda _: None) -> int:
    """Fetches all jars of a set, replaces `folder` by a folder with them, and returns their number.

    `check` is called with the folder of the new jars, before they replace the old ones. Raises ChangelogError
    (PRECONDITION) if Maven is missing or cannot fetch a jar, or if `folder` holds files that this function did not put
    there.
    """
    maven = shutil.which("mvn")
    if maven is None:
        hint = f"install it (Debian: apt-get install maven), or run `{jars.pom_command}` and Maven elsewhere"
        raise ChangelogError(Kind.PRECONDITION, "Maven is missing", hint=hint)
    if folder.exists() and any(folder.iterdir()) and not (folder / MANIFEST).exists():
        raise ChangelogError(
            Kind.PRECONDITION,
            f"the folder {folder} holds files that this command did not put there",
            hint="choose an empty folder with --to",
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        project, new = Path(scratch, "pom.xml"), Path(scratch, "jars")
        project.write_text(pom(jars), "utf-8")
        command = [maven, "--quiet", "--batch-mode", "--strict-checksums", "-Dstyle.color=never", f"--file={project}"]
        process = subprocess.run(
            [*command, "dependency:copy-dependencies", f"-DoutputDirectory={new}"],
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        if process.returncode != 0:
            raise _unfetched(jars, process.stdout)
        check(new)
        sizes = {jar.name: jar.stat().st_size for jar in sorted(new.glob("*.jar"))}
        manifest = {"set": jars.artifact, "coordinates": jars.coordinates, "jars": sizes}
        (new / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")
        new.chmod(0o755)
        if folder.exists():
            folder.rename(Path(scratch, "replaced"))
        new.rename(folder)
    return len(sizes)


def refuse_damaged(folder: Path, install_command: str) -> None:
    """Raises ChangelogError (PRECONDITION) if a jar that `install` put into the folder is missing or damaged."""
    manifest = folder / MANIFEST
    if not manifest.exists():  # a folder that somebody else filled
        return
    sizes: Mapping[str, int] = json.loads(manifest.read_text("utf-8"))["jars"]
    for jar, size in sizes.items():
        if not (folder / jar).exists() or (folder / jar).stat().st_size != size:
            raise ChangelogError(
                Kind.PRECONDITION,
                f"{folder / jar} is missing or damaged",
                hint=f"`{install_command}` fetches the set again",
            )


def _unfetched(jars: JarSet, output: str) -> ChangelogError:
    line = next((line for line in output.splitlines() if "ERROR" in line), "it said nothing")
    reason = re.sub(r"^.*?\[ERROR\] |Failed to execute goal on project \S+: | -> \[Help 1\].*", "", line)
    return ChangelogError(
        Kind.PRECONDITION,
        f"Maven cannot fetch {jars.title}: {reason}",
        hint="check the network, the proxy in ~/.m2/settings.xml, and the version",
    )


def _dependency(coordinates: str) -> str:
    group, artifact, version = coordinates.split(":")
    tags = {"groupId": group, "artifactId": artifact, "version": version}
    lines = [f"      <{tag}>{escape(value)}</{tag}>" for tag, value in tags.items()]
    return "\n".join(["    <dependency>", *lines, "    </dependency>"])
