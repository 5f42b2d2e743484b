"""Tests that the names and signatures of the Python API stay the same, and that importing `changelog` stays cheap."""

import inspect
import subprocess
import sys

import pytest

import changelog

SIGNATURES = {
    "open": "(source: 'str | os.PathLike[str] | None' = None) -> 'ChangelogReader'",
    "ChangelogReader.blame": "(entity, key, *, at=None)",
    "ChangelogReader.changes": "(entity=None, key=None, *, since=None, until=None, service=None, identifier=None)",
    "ChangelogReader.entities": "()",
    "ChangelogReader.follow": "(entity=None, key=None, *, last=0, service=None, timeout=None, stop=None)",
    "ChangelogReader.history": "(entity, key, *, since=None, until=None)",
    "ChangelogReader.position": "()",
    "ChangelogReader.table": "(entity, *, as_of=None, provenance=True)",
}
"""Users' programs call these functions. An argument with a default may be added; nothing may be renamed or removed."""


def bare(function: object) -> str:
    """Returns a method's signature without annotations and without `self`."""
    assert callable(function)
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for name, parameter in signature.parameters.items()
        if name != "self"
    ]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def test_names_and_signatures_are_pinned() -> None:
    reader = changelog.ChangelogReader
    methods = {name: getattr(reader, name) for name in vars(reader) if not name.startswith("_")}
    signatures = {f"ChangelogReader.{name}": bare(method) for name, method in methods.items()}
    assert {"open": str(inspect.signature(changelog.open)), **signatures} == SIGNATURES
    assert changelog.__all__ == ["ChangelogError", "ChangelogReader", "Envelope", "Position", "Record", "open"]
    assert all(hasattr(changelog, name) for name in changelog.__all__)


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'changelog' has no attribute 'opened'"):
        changelog.opened  # noqa: B018


def test_importing_the_package_imports_nothing_else() -> None:
    """Every command imports the package first, so a slow import would delay every command."""
    code = "import sys; before = set(sys.modules); import changelog; print(*sorted(set(sys.modules) - before))"
    process = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert {name for name in process.stdout.split() if name.partition(".")[0] in ("changelog", "pyarrow", "numpy")} == {
        "changelog"
    }
