"""`changelog schemas register`: registers the schemas of the live tables' changes, and of deltas.

A delta is a JSON Patch that a job derives from a change.
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

import msgspec
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from changelog.connectors import config, show
from changelog.connectors.config import OWN_ENVELOPE, Config, KafkaConfig
from changelog.connectors.schema_files.from_tables import live_entities
from changelog.connectors.sinks.kafka.admin.names import delta_subject, key_subject, subject
from changelog.connectors.terminal import say
from changelog.connectors.wiring.sinks import kafka_needed
from changelog.envelope.connect.event_schema import event_schemas
from changelog.envelope.connect.schema import to_avro
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas import avro
from changelog.schemas.types import Struct

if TYPE_CHECKING:
    from changelog.connectors.kafka.registry import Registry

RegistryState = Literal["registered", "new", "compatible", "incompatible"]

STATES: dict[RegistryState, tuple[str, str, str]] = {
    "registered": ("✓", "green", "is registered"),
    "new": ("+", "cyan", "would be the first version"),
    "compatible": ("+", "cyan", "would be a new version, which the registry accepts"),
    "incompatible": ("✗", "bold red", "is not compatible with the earlier versions, so the registry refuses it"),
}

FOUND = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryVerdict:
    """The registry's verdict on a schema of an entity.

    `subject` is the name under which the registry keeps the versions of this schema. `id` is the schema's id, None if
    it has not been registered.
    """

    entity: str
    subject: str
    state: RegistryState
    id: int | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog schemas register`."""
    parser.add_argument("entity", nargs="*", metavar="ENTITY", help="only these entities; default: all")
    parser.add_argument("--yes", action="store_true", help="register the schemas")
    parser.add_argument("--json", action="store_true", help="print the verdicts and the schemas as JSON")


def execute(arguments: argparse.Namespace) -> int:
    """Prints a verdict for each subject, and registers the schemas if `--yes` is given.

    Returns 1 if the registry refuses a schema, and then registers none.
    """
    settings = config.load(arguments.config, os.environ)
    sink = settings.sink
    if not isinstance(sink, KafkaConfig) or sink.registry is None:
        raise ChangelogError(
            Kind.USAGE,
            f"{arguments.config}: no registry is named",
            hint='set [sink] kind = "kafka", codec = "avro" and registry = "http://HOST:8081"',
        )
    with kafka_needed():
        from changelog.connectors.kafka.registry import Registry  # noqa: PLC0415
    schemas = live_schemas(settings, arguments.entity)
    if settings.envelope == OWN_ENVELOPE:
        schemas += [(entity, delta_subject(settings.prefix, entity), avro.delta_schema()) for entity, *_ in schemas]
    registry = Registry(sink.registry, sink.registry_client)
    try:
        verdicts = [judge(registry, *subject_schema) for subject_schema in schemas]
        refused = any(verdict.state == "incompatible" for verdict in verdicts)
        if arguments.yes and not refused:
            verdicts = [
                RegistryVerdict(
                    entity=entity, subject=subject, state="registered", id=registry.register(subject, schema)
                )
                for entity, subject, schema in schemas
            ]
    finally:
        registry.close()
    if arguments.json:
        say(
            msgspec.json.encode(
                [{**asdict(verdict), "schema": schema} for verdict, (*_, schema) in zip(verdicts, schemas, strict=True)]
            ).decode()
        )
    else:
        print_verdicts(show.console(), verdicts, registered=arguments.yes)
    return FOUND if refused else 0


def live_schemas(settings: Config, names: Sequence[str]) -> list[tuple[str, str, avro.Schema]]:
    """Returns the schemas of the entities `names`, or of all entities if there are no names.

    Each entry has the name of an entity, a subject, and the subject's schema. The schema is that of the messages that
    the service would publish for the table as it is now. If messages have an envelope other than our own, their keys
    have a schema, too. Raises ChangelogError (USAGE) if one of the names is not that of an entity.
    """
    return [
        (entity.name, subject_, schema)
        for entity, shape in live_entities(settings, names)
        for subject_, schema in _schemas(settings, entity, shape).items()
    ]


def _schemas(settings: Config, entity: Entity, shape: Struct) -> dict[str, avro.Schema]:
    """Returns the schemas of an entity's messages, by subject."""
    name, prefix = entity.name, settings.prefix
    if settings.envelope == OWN_ENVELOPE:
        return {subject(prefix, name): avro.value_schema(name, shape, entity.key, prefix)}
    schemas = event_schemas(name, shape, entity.key, prefix)
    value = schemas.row if settings.envelope == "flat" else schemas.event
    return {key_subject(prefix, name): to_avro(schemas.key), subject(prefix, name): to_avro(value)}


def judge(registry: "Registry", entity: str, subject: str, schema: avro.Schema) -> RegistryVerdict:
    """Asks the registry for its verdict on a schema, and registers nothing."""
    id_ = registry.look_up(subject, schema)
    if id_ is not None:
        return RegistryVerdict(entity=entity, subject=subject, state="registered", id=id_)
    states: dict[bool | None, RegistryState] = {None: "new", True: "compatible", False: "incompatible"}
    return RegistryVerdict(entity=entity, subject=subject, state=states[registry.is_compatible(subject, schema)])


def print_verdicts(console: Console, verdicts: Sequence[RegistryVerdict], *, registered: bool) -> None:
    """Prints a line for each subject. If schemas remain unregistered, also says that nothing was registered."""
    grid = Grid.grid(padding=(0, 1))
    grid.add_column()
    grid.add_column(style="bold", overflow="fold")
    grid.add_column(overflow="fold")
    for verdict in verdicts:
        mark, style, text = STATES[verdict.state]
        id_ = "" if verdict.id is None else f" with id {verdict.id}"
        grid.add_row(Text(mark, style=style), verdict.subject, f"{text}{id_}")
    console.print(grid)
    if any(verdict.state == "incompatible" for verdict in verdicts):
        console.print("\nnothing was registered", style="bold red")
    elif not registered and any(verdict.id is None for verdict in verdicts):
        console.print("\nnothing was registered; --yes registers these schemas")
