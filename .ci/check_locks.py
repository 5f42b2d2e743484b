"""Checks that the lock files can be trusted anywhere: hashes only, no paths or addresses, in step with pyproject.toml.

Exits 1 with one line for each thing that is wrong; the remedy is `make lock`.
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
    "requirements.lock": (("embedded", "kafka"), ()),
    "requirements-dev.lock": (("embedded", "kafka", "spark"), ("test", "lint", "docs")),
}
"""For each lock: the extras and the dependency groups that it pins beside the core dependencies."""

OURS = "changelog-publisher (pyproject.toml"  # how uv marks what is required directly, with `:group` after it
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)(?: ; .*)? \\$")
ELSEWHERE = re.compile(r"://|\s@\s|file:|^-|(?:^|\s)\.{0,2}/\S")


def main() -> int:
    """Prints what is wrong; gives the exit code."""
    project = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))
    wrong = [f"{name}: {problem}" for name in LOCKS for problem in problems(name, project)]
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong:
        print("the locks are not in order; run: make lock", file=sys.stderr)
    return 1 if wrong else 0


def problems(name: str, project: dict[str, Any]) -> Iterator[str]:
    """What is wrong with one lock."""
    lines = Path(name).read_text("utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        if ELSEWHERE.search(line.replace("-c requirements.lock", "")):
            yield f"line {number} holds a path, an address or an option"
    blocks = list(pinned(lines))
    for package, _, block in blocks:
        if "--hash=sha256:" not in block:
            yield f"{package} has no hash"
    wanted = {canonicalize_name(found.name): found for found in required(project, *LOCKS[name])}
    direct = {package for package, _, block in blocks if OURS in block}
    for package in sorted(wanted.keys() ^ direct):
        yield f"{package} is {'not locked' if package in wanted else 'locked, but no longer required'}"
    for package, version, _ in blocks:
        if package in wanted and not wanted[package].specifier.contains(version, prereleases=True):
            yield f"{package} is locked at {version}, required is {wanted[package].specifier}"


def pinned(lines: list[str]) -> Iterator[tuple[str, str, str]]:
    """Each pinned package of a lock: its normalised name, its version, and all its lines."""
    starts = [number for number, line in enumerate(lines) if PIN.match(line)]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        found = PIN.match(lines[start])
        assert found is not None
        yield canonicalize_name(found[1]), found[2], "\n".join(lines[start:end])


def required(project: dict[str, Any], extras: tuple[str, ...], groups: tuple[str, ...]) -> Iterator[Requirement]:
    """What pyproject.toml requires directly."""
    texts = list(project["project"]["dependencies"])
    for extra in extras:
        texts += project["project"]["optional-dependencies"][extra]
    for group in groups:
        texts += project["dependency-groups"][group]
    return map(Requirement, texts)


if __name__ == "__main__":
    sys.exit(main())
