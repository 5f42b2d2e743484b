"""Compares schema files with live tables: shows what `changelog schemas generate` would change, and which readers or
writers this breaks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from changelog.connectors.config import Config
from changelog.connectors.schema_files import files
from changelog.connectors.schema_files.files import Contract
from changelog.connectors.schema_files.from_tables import live_entities
from changelog.connectors.schema_files.history import Past, SchemaVersion
from changelog.connectors.schema_files.reports import CheckReport
from changelog.connectors.schema_files.verdicts import SchemaFinding, Verdict, judge
from changelog.envelope.entity import Entity
from changelog.schemas import avro
from changelog.schemas.compatibility import Mode
from changelog.schemas.types import ColumnType, Struct, to_json

AGAINST = "the live tables"

LIVE = "the live table"
"""The name that findings use for the schema that `generate` would write."""

GENERATE = "`changelog schemas generate` writes what the table has"


def report(settings: Config, contracts: Sequence[Contract], folder: Path | None, mode: Mode) -> CheckReport:
    """Compares the files `contracts` with the live tables.

    A file gets a verdict if it is invalid, or if it is the schema of an entity that exists. Notes mention the other
    files. If `folder` is given, `contracts` are all the files in it. Then each entity without a file also gets a
    verdict: its file is missing.
    """
    contract_by_entity: dict[str, Contract] = {}
    invalid, notes = [], []
    for contract in contracts:
        entity_path = None if contract.rule else avro.entity_of(contract.schema)
        if contract.rule:
            invalid.append(judge(contract, None, mode))
        elif entity_path is None or entity_path[0] != settings.prefix:
            notes.append(f"{contract.file} was not compared: it is not the schema of an entity of {settings.prefix}")
        else:
            contract_by_entity[entity_path[1]] = contract
    broken = {verdict.file for verdict in invalid}
    verdicts = [
        verdict for verdict in _verdicts(settings, contract_by_entity, folder, mode) if verdict.file not in broken
    ]
    live = {verdict.file for verdict in verdicts}
    notes += [
        f"{contract.file} has no entity: remove it once nobody reads its topic"
        for contract in contract_by_entity.values()
        if contract.file not in live
    ]
    return CheckReport(against=AGAINST, verdicts=[*invalid, *verdicts], notes=notes)


def _verdicts(
    settings: Config, contract_by_entity: Mapping[str, Contract], folder: Path | None, mode: Mode
) -> Iterator[Verdict]:
    for entity, shape in live_entities(settings, ()):
        schema = avro.state_schema(entity.name, shape, entity.key, settings.prefix, partition_by=entity.partition_by)
        contract = contract_by_entity.get(entity.name)
        if contract is not None:
            yield _compared(contract, schema, entity, shape, mode)
        elif folder is not None:
            yield _missing(folder / f"{entity.name}{files.SUFFIX}", settings.prefix, entity)


def _missing(file: Path, prefix: str, entity: Entity) -> Verdict:
    finding = SchemaFinding(
        rule="FILE_MISSING",
        path="/",
        line=1,
        text=f"entity {entity.name} of table {'.'.join(entity.table)} has no file",
        hint="`changelog schemas generate` writes it",
    )
    return Verdict(file=str(file), subject=f"{prefix}.{entity.name}", state="new", findings=(finding,))


def _compared(contract: Contract, schema: avro.Schema, entity: Entity, shape: Struct, mode: Mode) -> Verdict:
    """Judges a file: finds how it differs from the table, and which readers or writers the difference breaks.

    The compatibility mode of the file decides what counts as broken; `mode` is for files that set none.
    """
    try:
        file_columns = avro.state_shape(contract.schema)
    except ValueError as error:
        return judge(replace(contract, rule="NOT_OURS", trouble=str(error)), None, mode)
    live_schema = files.merged(schema, contract.schema)
    earlier = SchemaVersion(label=Path(contract.file).name, where="the file as it is", schema=contract.schema)
    verdict = judge(contract, Past(schema=live_schema, label=LIVE, versions=(earlier,)), mode)
    drift = [*_columns(contract, file_columns, shape), *_keys(contract, entity)]
    if not drift and verdict.state != "unchanged":
        drift.append(
            SchemaFinding(rule="FILE_OUTDATED", path="/", line=1, text=_outdated(file_columns, shape), hint=GENERATE)
        )
    if verdict.state == "compatible":
        drift = [replace(finding, text=f"{finding.text}: compatible ({verdict.mode})") for finding in drift]
    return replace(verdict, findings=(*drift, *verdict.findings))


def _columns(contract: Contract, file_columns: Struct, table_columns: Struct) -> Iterator[SchemaFinding]:
    """Yields a finding for each column that the file or the table lacks, and for each column whose type differs between
    them.
    """
    types_in_file, types_in_table = dict(file_columns.fields), dict(table_columns.fields)
    for name, type_ in table_columns.fields:
        if name not in types_in_file:
            yield _drift(contract, "COLUMN_MISSING", name, f'the table has a column "{name}" that the file lacks')
        elif types_in_file[name] != type_:
            text = f'"{name}" is {_spelled(types_in_file[name])} in the file, and {_spelled(type_)} in the table'
            yield _drift(contract, "COLUMN_TYPE", name, text)
    for name, _ in file_columns.fields:
        if name not in types_in_table:
            yield _drift(contract, "COLUMN_GONE", name, f'the file has a column "{name}" that the table lacks')


def _keys(contract: Contract, entity: Entity) -> Iterator[SchemaFinding]:
    """Yields a finding if the key differs between file and table, and another one if the partition columns differ."""
    for rule, member, names in (
        ("KEY_DIFFERS", "key", entity.key),
        ("PARTITION_DIFFERS", "partitionBy", entity.partition_by),
    ):
        file_names = contract.schema.get(member)
        if file_names != list(names):
            file_text = ", ".join(map(str, file_names)) if isinstance(file_names, list) else "missing"
            table_text = f"{', '.join(names)} according to the configuration and the table"
            text = f"{member} is {file_text} in the file, but {table_text}"
            yield SchemaFinding(rule=rule, path="/", line=1, text=text, hint=GENERATE)


def _drift(contract: Contract, rule: str, column: str, text: str) -> SchemaFinding:
    path = f"/fields/{avro.safe(column)}"
    return SchemaFinding(rule=rule, path=path, line=contract.line(path), text=text, hint=GENERATE)


def _outdated(file_columns: Struct, table_columns: Struct) -> str:
    if [name for name, _ in file_columns.fields] != [name for name, _ in table_columns.fields]:
        return "the columns have another order in the table"
    return "the file is not as `changelog schemas generate` writes it"


def _spelled(type_: ColumnType) -> str:
    spelling = to_json(type_)
    return spelling if isinstance(spelling, str) else str(spelling).replace("'", "")
