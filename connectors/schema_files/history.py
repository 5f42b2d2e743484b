"""What came before schema files: their versions, and the subjects that have no file now."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from changelog.connectors.schema_files import files
from changelog.connectors.schema_files.files import Contract
from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas import avro


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """An earlier version of a schema; `where` says of which commit, file or registry it is."""

    label: str
    where: str
    schema: avro.Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The versions of one contract, oldest first; `schema` is what is compared with them, `label` names it.

    `at` is the pointer to where in it the file's own schema stands.
    """

    schema: avro.Schema
    label: str
    versions: tuple[Version, ...]
    at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What files are compared with, by file.

    `against` names it; `removed` are contracts whose subject no file has now; `notes` say what could not be compared.
    """

    against: str
    pasts: Mapping[str, Past]
    removed: tuple[Contract, ...] = ()
    notes: tuple[str, ...] = ()


def past(contract: Contract, found: Sequence[tuple[str, Contract]]) -> Past:
    """The versions of a contract among earlier files, each with where it is from, oldest first.

    Files that held another subject or no schema are passed over, and so is one that holds what the one before it held.
    """
    kept: list[tuple[str, avro.Schema]] = []
    for where, earlier in found:
        if not earlier.rule and earlier.name == contract.name and (not kept or kept[-1][1] != earlier.schema):
            kept.append((where, earlier.schema))
    versions = tuple(
        Version(label=f"v{number}", where=where, schema=schema) for number, (where, schema) in enumerate(kept, 1)
    )
    is_last = bool(kept) and kept[-1][1] == contract.schema
    return Past(schema=contract.schema, label=f"v{len(kept) + (not is_last)}", versions=versions)


def read(paths: Sequence[Path]) -> Iterator[Contract]:
    """The contracts in files, and in folders with all that is below them, by name."""
    for path in paths:
        yield from map(read_file, sorted(path.rglob(f"*{files.SUFFIX}")) if path.is_dir() else [path])


def read_file(file: Path) -> Contract:
    """The contract in a file; one that cannot be read says so."""
    try:
        return files.parse(str(file), file.read_bytes())
    except OSError as error:
        return Contract(file=str(file), text="", rule="UNREADABLE", trouble=f"cannot be read: {error.strerror}")


def in_folder(contracts: Sequence[Contract], folder: Path) -> Earlier:
    """One version each, from the files of a folder. Raises USAGE when there is no such folder."""
    if not folder.is_dir():
        raise ChangelogError(
            Kind.USAGE, f"--against {folder}: no such folder", hint="say git:REF, registry:URL or a folder"
        )
    earlier = {each.name or Path(each.file).name: each for each in read([folder])}
    names = {each.name or Path(each.file).name for each in contracts}
    pasts = {
        each.file: past(each, [(f"file {found.file}", found)] if found else [])
        for each, found in ((each, earlier.get(each.name or Path(each.file).name)) for each in contracts)
        if not each.rule
    }
    removed = tuple(each for name, each in earlier.items() if name not in names and not each.rule)
    return Earlier(against=str(folder), pasts=pasts, removed=removed)
