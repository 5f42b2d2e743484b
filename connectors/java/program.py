"""Finds the program `java`, and checks its version."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from changelog.envelope.errors import ChangelogError, Kind

OLDEST_JAVA = 17


def find_java() -> str:
    """Returns the path of the program `java`: the one in $JAVA_HOME/bin, or in $PATH if JAVA_HOME is not set.

    Raises ChangelogError (PRECONDITION) if `java` is missing or older than OLDEST_JAVA.
    """
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    hint = f"install Java {OLDEST_JAVA} or newer (Debian: apt-get install openjdk-17-jdk-headless)"
    if program is None:
        raise ChangelogError(Kind.PRECONDITION, f"there is no java in {home or 'PATH'}", hint=hint)
    output = subprocess.run([program, "-version"], capture_output=True, check=False).stderr.decode("utf-8", "replace")
    version = re.search(r'version "(?:1\.)?(\d+)', output)
    if version is None or int(version[1]) < OLDEST_JAVA:
        raise ChangelogError(Kind.PRECONDITION, f"{program} is Java {version[1] if version else '?'}", hint=hint)
    return program
