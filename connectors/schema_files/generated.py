"""Schema files from live tables."""

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

State = Literal["written", "unchanged", "outdated", "orphaned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a file: `outdated` was not written, for only a look was wanted; `orphaned` has no entity now."""

    entity: str
    file: Path
    state: State


def generate(settings: Config, names: Sequence[str], folder: Path, *, write: bool = True) -> list[Outcome]:
    """Writes the files of the entities `names`, or of all; what is as it should be is left alone.

    Raises ChangelogError: what `live_entities` raises, and PRECONDITION where a file stands in the way.
    """
    made = [(entity, _made(settings.prefix, entity, shape, folder)) for entity, shape in live_entities(settings, names)]
    found = [_put(entity.name, _file(folder, entity.name), *texts, write=write) for entity, texts in made]
    return found if names else [*found, *_orphaned(settings.prefix, {entity.name for entity, _ in made}, folder)]


def _file(folder: Path, entity: str) -> Path:
    return folder / f"{entity}{files.SUFFIX}"


def _made(prefix: str, entity: Entity, shape: Struct, folder: Path) -> tuple[bytes, bytes | None]:
    """What the file should hold, and what it holds."""
    file = _file(folder, entity.name)
    schema = avro.state_schema(entity.name, shape, entity.key, prefix, partition_by=entity.partition_by)
    try:
        before = file.read_bytes()
    except FileNotFoundError:
        return files.text_of(schema).encode(), None
    contract = files.parse(str(file), before)
    hint = "mend it, or remove it to have it made anew"
    if contract.rule:
        raise ChangelogError(Kind.PRECONDITION, f"{file} {contract.trouble}", hint=hint)
    if avro.entity_of(contract.schema) is None:
        raise ChangelogError(
            Kind.PRECONDITION, f"{file} is not the file of an entity", hint="move it, or give another --out"
        )
    return files.text_of(files.merged(schema, contract.schema)).encode(), before


def _put(entity: str, file: Path, content: bytes, before: bytes | None, *, write: bool) -> Outcome:
    if content == before:
        return Outcome(entity=entity, file=file, state="unchanged")
    if write:
        make_folder(file.parent, PUBLIC_FOLDER)
        make_file(file, PUBLIC_FILE)
        file.write_bytes(content)
    return Outcome(entity=entity, file=file, state="written" if write else "outdated")


def _orphaned(prefix: str, names: set[str], folder: Path) -> Iterator[Outcome]:
    for file in sorted(folder.glob(f"*{files.SUFFIX}")):
        found = avro.entity_of(files.parse(str(file), file.read_bytes()).schema)
        if found and found[0] == prefix and found[1] not in names:
            yield Outcome(entity=found[1], file=file, state="orphaned")
