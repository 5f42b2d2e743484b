"""Checks three rules for the lock files. Each package must have a hash. No line may have a path, an address or an
option. Each package that pyproject.toml requires must be there, in a version that it allows, and no other package may
be marked as required by it.

Prints one line for each problem, and exits with 1 if there are problems. `make lock` writes the files again.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCKS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "requirements.lock": (("console", "embedded", "kafka", "mysql", "redis", "state", "views"), ()),
    "requirements-dev.lock": (
        ("console", "embedded", "kafka", "mysql", "redis", "state", "views", "spark"),
        ("test", "lint", "docs"),
    ),
}
"""Which extras and dependency groups each lock file pins. It also pins the core dependencies."""

OURS = "changelog-publisher (pyproject.toml"  # uv marks direct requirements with this; `:group` may follow
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)(?: ; .*)? \\$")
ELSEWHERE = re.compile(r"://|\s@\s|file:|^-|(?:^|\s)\.{0,2}/\S")


def main() -> int:
    """Prints the problems, and returns the exit code."""
    project = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))
    lines = [f"{name}: {problem}" for name in LOCKS for problem in problems(name, project)]
    for line in lines:
        print(line, file=sys.stderr)
    if lines:
        print("the lock files are wrong; run: make lock", file=sys.stderr)
    return 1 if lines else 0


def problems(name: str, project: dict[str, Any]) -> Iterator[str]:
    """Yields what is wrong in one lock file."""
    lines = Path(name).read_text("utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        if ELSEWHERE.search(line.replace("-c requirements.lock", "")):
            yield f"line {number} holds a path, an address or an option"
    blocks = list(pinned(lines))
    for package, _, block in blocks:
        if "--hash=sha256:" not in block:
            yield f"{package} has no hash"
    requirements = {canonicalize_name(requirement.name): requirement for requirement in required(project, *LOCKS[name])}
    direct = {package for package, _, block in blocks if OURS in block}
    for package in sorted(requirements.keys() ^ direct):
        yield f"{package} is {'not locked' if package in requirements else 'locked, but no longer required'}"
    for package, version, _ in blocks:
        if package in requirements and not requirements[package].specifier.contains(version, prereleases=True):
            yield f"{package} is locked at {version}, but pyproject.toml requires {requirements[package].specifier}"


def pinned(lines: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yields each package that a lock file pins: its normalised name, its version, and the text of all its lines."""
    starts = [number for number, line in enumerate(lines) if PIN.match(line)]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        pin = PIN.match(lines[start])
        assert pin is not None
        yield canonicalize_name(pin[1]), pin[2], "\n".join(lines[start:end])


def required(project: dict[str, Any], extras: tuple[str, ...], groups: tuple[str, ...]) -> Iterator[Requirement]:
    """Yields the direct requirements in pyproject.toml: the core dependencies, and those of the extras and groups."""
    texts = list(project["project"]["dependencies"])
    for extra in extras:
        texts += project["project"]["optional-dependencies"][extra]
    for group in groups:
        texts += project["dependency-groups"][group]
    return map(Requirement, texts)


if __name__ == "__main__":
    sys.exit(main())
