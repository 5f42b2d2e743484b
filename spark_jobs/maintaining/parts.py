"""Defines the parts of a maintained view: its own rows, and the rows of each array in its documents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from changelog.connectors.config import NestedConfig, ViewConfig
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.states import fold
from changelog.schemas.avro import Column
from changelog.schemas.spark import DIGITS_MAX, struct
from changelog.schemas.types import ColumnType, Decimal, Primitive

_ALL: Final = ("*",)

_INEXACT: Final = frozenset({Primitive.FLOAT, Primitive.DOUBLE, Primitive.JSON, Primitive.TIME})
"""Types whose values cannot be compared as texts: equal values can have different texts, or different values equal
texts."""

_INTEGERS: Final = frozenset({Primitive.INT, Primitive.LONG})

Path = tuple[str, ...]
"""The names of the arrays that lead to a part, outer arrays first. The path of the view's own rows is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewPart:
    """The rows of one entity in a view. They have `columns`, of which documents show only `shown`.

    `on` is for an array. It maps columns of this part to columns of the enclosing part. A row of the array belongs to
    an enclosing row if the two have equal values in all these pairs of columns.
    """

    path: Path = ()
    entity: str
    columns: Sequence[Column]
    shown: Sequence[str] = ()
    on: Mapping[str, str] = field(default_factory=dict)

    def definition(self) -> dict[str, object]:
        """Returns the part as JSON values, as they are in the definition of a view (`ViewProgress`)."""
        columns = struct(self.columns)
        return {"path": self.path, "entity": self.entity, "columns": columns, "shown": self.shown, "on": self.on}


def parts_of(name: str, view: ViewConfig, columns: Mapping[str, Sequence[Column]]) -> list[ViewPart]:
    """Returns the parts of the view `name`: first its own rows, then its arrays, outer arrays before inner ones.

    `columns` has the columns of each entity. Raises ChangelogError (USAGE) if an entity lacks a column that the
    configuration names, if the name of an array is taken, or if the columns in an `on` cannot be compared.
    """
    parts: list[ViewPart] = []
    configs: list[tuple[Path, ViewConfig | NestedConfig]] = [((), view)]
    for path, config in configs:
        where = f"[views.{'.nested.'.join((name, *path))}]"
        _refuse_names(config, columns[config.entity], where)
        part = _part(path, config, columns[config.entity], where)
        if isinstance(config, NestedConfig):
            outer = next(outer for outer in parts if outer.path == path[:-1])
            _refuse_on(part, outer, where)
        parts.append(part)
        configs += (((*path, member), inner) for member, inner in config.nested.items())
    return parts


def _part(path: Path, config: ViewConfig | NestedConfig, columns: Sequence[Column], where: str) -> ViewPart:
    columns_by_name = {column.name: column for column in columns}
    shown = list(columns_by_name) if config.columns == _ALL else list(config.columns)
    _refuse_unknown(shown, columns_by_name, f"{where} columns: the entity {config.entity}")
    needed = [name for inner in config.nested.values() for name in inner.on.values()]
    _refuse_unknown(needed, columns_by_name, f"{where} nested: the entity {config.entity}")
    if isinstance(config, NestedConfig):
        needed += config.on
        _refuse_unknown(needed, columns_by_name, f"{where} on: the entity {config.entity}")
        names = list(dict.fromkeys([*shown, *needed]))
        return ViewPart(
            path=path,
            entity=config.entity,
            columns=[columns_by_name[column_name] for column_name in names],
            shown=shown,
            on=config.on,
        )
    missing_name = next((column_name for column_name in needed if column_name not in shown), None)
    if missing_name is not None:
        message = f"{where} nested: the view does not have the column {missing_name}, which an `on` names"
        raise ChangelogError(Kind.USAGE, message, hint=f"add {missing_name} to its columns")
    return ViewPart(entity=config.entity, columns=[columns_by_name[column_name] for column_name in shown], shown=shown)


def _refuse_unknown(names: Sequence[str], columns_by_name: Mapping[str, Column], what: str) -> None:
    unknown_name = next((name for name in names if name not in columns_by_name), None)
    if unknown_name is not None:
        hint = f"it has: {', '.join(columns_by_name)}"
        raise ChangelogError(Kind.USAGE, f"{what} has no column {unknown_name}", hint=hint)


def _refuse_names(config: ViewConfig | NestedConfig, columns: Sequence[Column], where: str) -> None:
    taken_names = {name.lower() for name in (*(column.name for column in columns), *fold.ABOUT.names)}
    for member in config.nested:
        if member.lower() in taken_names:
            message = f"{where} nested: another column or array of the entity {config.entity} has the name {member}"
            raise ChangelogError(Kind.USAGE, message, hint="rename the array; names must differ in more than case")
        taken_names.add(member.lower())


def _refuse_on(part: ViewPart, outer: ViewPart, where: str) -> None:
    types_by_name, outer_types_by_name = _types(part), _types(outer)
    for name, outer_name in part.on.items():
        type_, outer_type = types_by_name[name], outer_types_by_name[outer_name]
        if not _is_exact(type_) or not _is_exact(outer_type):
            inexact_name = outer_name if _is_exact(type_) else name
            hint = "use integers, decimal numbers of at most 38 digits, booleans, text, UUIDs, bytes or dates"
            raise ChangelogError(
                Kind.USAGE, f"{where} on: values of column {inexact_name} cannot be compared", hint=hint
            )
        if type_ != outer_type and not {type_, outer_type} <= _INTEGERS:
            message = f"{where} on: {part.entity}.{name} and {outer.entity}.{outer_name} have different types"
            raise ChangelogError(Kind.USAGE, message, hint="name columns of the same type")


def _types(part: ViewPart) -> dict[str, ColumnType]:
    return {column.name: column.type for column in part.columns}


def _is_exact(type_: ColumnType) -> bool:
    if isinstance(type_, Decimal):
        return type_.precision <= DIGITS_MAX
    return isinstance(type_, Primitive) and type_ not in _INEXACT
