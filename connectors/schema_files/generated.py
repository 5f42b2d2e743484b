"""Writes schema files from the tables as they are now in the database."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from changelog.connectors.config import Config
from changelog.connectors.permissions import PUBLIC_FILE, PUBLIC_FOLDER, make_file, make_folder
from changelog.connectors.schema_files import files
from changelog.connectors.schema_files.from_tables import live_entities
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas import avro
from changelog.schemas.types import Struct

FOLDER = Path("schemas")

FileState = Literal["written", "unchanged", "outdated", "orphaned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOutcome:
    """What `generate` did with a file.

    An `outdated` file should change, but was not written. An `orphaned` file belongs to an entity that no longer
    exists; `generate` leaves it unchanged.
    """

    entity: str
    file: Path
    state: FileState


def generate(settings: Config, names: Sequence[str], folder: Path, *, write: bool = True) -> list[FileOutcome]:
    """Writes the files of the entities `names`, or of all entities, and returns what happened to each file.

    If `write` is False, writes nothing and reports outdated files. Never writes a file that is up to date. Reports
    orphaned files only if `names` is empty. Raises ChangelogError: what `live_entities` raises, and PRECONDITION if an
    existing file is not the valid schema file of an entity.
    """
    contents = [
        (entity, _contents(settings.prefix, entity, shape, folder)) for entity, shape in live_entities(settings, names)
    ]
    outcomes = [
        _put(entity.name, _file(folder, entity.name), *old_and_new, write=write) for entity, old_and_new in contents
    ]
    return (
        outcomes if names else [*outcomes, *_orphaned(settings.prefix, {entity.name for entity, _ in contents}, folder)]
    )


def _file(folder: Path, entity: str) -> Path:
    return folder / f"{entity}{files.SUFFIX}"


def _contents(prefix: str, entity: Entity, shape: Struct, folder: Path) -> tuple[bytes, bytes | None]:
    """Returns the content that the entity's file should have, and its present content, which is None if there is no
    file.
    """
    file = _file(folder, entity.name)
    schema = avro.state_schema(entity.name, shape, entity.key, prefix, partition_by=entity.partition_by)
    try:
        old_content = file.read_bytes()
    except FileNotFoundError:
        return files.text_of(schema).encode(), None
    contract = files.parse(str(file), old_content)
    hint = "correct it, or remove it and generate it again"
    if contract.rule:
        raise ChangelogError(Kind.PRECONDITION, f"the file {file} {contract.trouble}", hint=hint)
    if avro.entity_of(contract.schema) is None:
        raise ChangelogError(
            Kind.PRECONDITION,
            f"the file {file} is not the schema file of an entity",
            hint="move it, or give another --out",
        )
    return files.text_of(files.merged(schema, contract.schema)).encode(), old_content


def _put(entity: str, file: Path, content: bytes, old_content: bytes | None, *, write: bool) -> FileOutcome:
    if content == old_content:
        return FileOutcome(entity=entity, file=file, state="unchanged")
    if write:
        make_folder(file.parent, PUBLIC_FOLDER)
        make_file(file, PUBLIC_FILE)
        file.write_bytes(content)
    return FileOutcome(entity=entity, file=file, state="written" if write else "outdated")


def _orphaned(prefix: str, names: set[str], folder: Path) -> Iterator[FileOutcome]:
    for file in sorted(folder.glob(f"*{files.SUFFIX}")):
        entity_path = avro.entity_of(files.parse(str(file), file.read_bytes()).schema)
        if entity_path and entity_path[0] == prefix and entity_path[1] not in names:
            yield FileOutcome(entity=entity_path[1], file=file, state="orphaned")
