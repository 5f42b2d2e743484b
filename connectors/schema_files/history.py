"""Defines classes for the earlier versions with which schema files are compared, and reads such versions from a folder.

A subject is the name of a schema, such as `prefix.entity` (`Contract.subject`). A subject that had a file earlier, and
has none now, counts as removed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from changelog.connectors.schema_files import files
from changelog.connectors.schema_files.files import Contract
from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas import avro


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaVersion:
    """An earlier version of a schema.

    `label` is its name in sentences, such as "v3". `where` names the commit, the file or the version in the registry
    from which it was read.
    """

    label: str
    where: str
    schema: avro.Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The earlier versions of one contract, and the schema that is compared with them.

    `versions` are in order, oldest first. `schema` is the schema in the file, or one that was made from it; `label`
    names `schema` in sentences. If `schema` contains the file's schema as a part, `at` is a pointer to that part;
    otherwise `at` is empty.
    """

    schema: avro.Schema
    label: str
    versions: tuple[SchemaVersion, ...]
    at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """The earlier versions with which a set of files is compared.

    `against` says where the earlier versions come from. `pasts` maps each file to its earlier versions. `removed` has
    the earlier contracts whose subject has no file now. `notes` says what could not be compared.
    """

    against: str
    pasts: Mapping[str, Past]
    removed: tuple[Contract, ...] = ()
    notes: tuple[str, ...] = ()


def past(contract: Contract, candidates: Sequence[tuple[str, Contract]]) -> Past:
    """Finds the earlier versions of a contract among `candidates`.

    `candidates` are earlier files, oldest first. Each is a pair: a text that says where it was read, and its content.
    Invalid files and files with another schema name are skipped. A file is also skipped if its schema equals that of
    the version before it.
    """
    old_schemas: list[tuple[str, avro.Schema]] = []
    for where, earlier in candidates:
        if (
            not earlier.rule
            and earlier.name == contract.name
            and (not old_schemas or old_schemas[-1][1] != earlier.schema)
        ):
            old_schemas.append((where, earlier.schema))
    versions = tuple(
        SchemaVersion(label=f"v{number}", where=where, schema=schema)
        for number, (where, schema) in enumerate(old_schemas, 1)
    )
    is_last = bool(old_schemas) and old_schemas[-1][1] == contract.schema
    return Past(schema=contract.schema, label=f"v{len(old_schemas) + (not is_last)}", versions=versions)


def read(paths: Sequence[Path]) -> Iterator[Contract]:
    """Reads the contracts in files, and in folders and their subfolders. The files of a folder are sorted by path."""
    for path in paths:
        yield from map(read_file, sorted(path.rglob(f"*{files.SUFFIX}")) if path.is_dir() else [path])


def read_file(file: Path) -> Contract:
    """Reads the contract in a file. If the file cannot be read, the contract's `rule` and `trouble` say so."""
    try:
        return files.parse(str(file), file.read_bytes())
    except OSError as error:
        return Contract(file=str(file), text="", rule="UNREADABLE", trouble=f"cannot be read: {error.strerror}")


def in_folder(contracts: Sequence[Contract], folder: Path) -> Earlier:
    """Reads the earlier version of each contract from a folder. If two schemas there have one name, the last counts.

    Raises ChangelogError (USAGE) if there is no such folder.
    """
    if not folder.is_dir():
        raise ChangelogError(
            Kind.USAGE, f"--against {folder}: no such folder", hint="say git:REF, registry:URL or a folder"
        )
    earlier = {contract.name or Path(contract.file).name: contract for contract in read([folder])}
    names = {contract.name or Path(contract.file).name for contract in contracts}
    pasts = {
        contract.file: past(contract, [(f"file {old_contract.file}", old_contract)] if old_contract else [])
        for contract, old_contract in (
            (contract, earlier.get(contract.name or Path(contract.file).name)) for contract in contracts
        )
        if not contract.rule
    }
    removed = tuple(contract for name, contract in earlier.items() if name not in names and not contract.rule)
    return Earlier(against=str(folder), pasts=pasts, removed=removed)
