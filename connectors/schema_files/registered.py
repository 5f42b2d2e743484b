"""Reads earlier versions of entities' schemas from a registry.

A schema in the registry describes the whole value of a message. A schema file describes only the columns of an entity.
The schema in the file is a part of the schema in the registry, at the pointer `STATE_AT`.
"""

from collections.abc import Sequence

from changelog.connectors.kafka.registry import Registry
from changelog.connectors.schema_files import files
from changelog.connectors.schema_files.files import Contract
from changelog.connectors.schema_files.history import Earlier, Past, SchemaVersion
from changelog.connectors.sinks.kafka.admin.names import subject
from changelog.schemas import avro

STATE_AT = "/fields/current"


def in_registry(contracts: Sequence[Contract], registry: Registry) -> Earlier:
    """Reads, for each contract, all versions of the entity's subject in the registry.

    Reports no subject as removed, because subjects without a file may belong to other services. Raises the
    ChangelogError that `Registry.versions` raises.
    """
    pasts, notes = {}, []
    for contract in contracts:
        if contract.rule:
            continue
        entity_path = avro.entity_of(contract.schema)
        try:
            if entity_path is None:
                raise ValueError
            schema = avro.registered(contract.schema)
        except ValueError:
            notes.append(f"{contract.file} was not compared: it is not the schema of an entity's columns")
            continue
        pasts[contract.file] = _past(schema, registry.versions(subject(*entity_path)))
    return Earlier(against=f"registry:{registry.where}", pasts=pasts, notes=tuple(notes))


def _past(schema: avro.Schema, registered: Sequence[tuple[int, str]]) -> Past:
    documents = [(number, files.parse("", text.encode())) for number, text in registered]
    versions = tuple(
        SchemaVersion(label=f"v{number}", where=f"version {number} in the registry", schema=contract.schema)
        for number, contract in documents
        if not contract.rule
    )
    is_last = bool(versions) and versions[-1].schema == schema
    number = registered[-1][0] if registered else 0
    return Past(schema=schema, label=f"v{number + (not is_last)}", versions=versions, at=STATE_AT)
