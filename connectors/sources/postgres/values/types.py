"""Resolves a type OID to a description of the type, read from the system catalogue."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

TypeKind = Literal["base", "enum", "domain", "composite", "array", "range", "multirange", "unknown"]

Query = Callable[[str, Sequence[object]], list[tuple[Any, ...]]]
"""Runs SQL with `%s` parameters and returns the rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PgType:
    """A type of PostgreSQL.

    `name` begins with the type's schema, except for built-in types and for the type of the extension `hstore`.
    `element` is the element type of an array, the subtype of a range or the range type of a multirange. `base` and
    `typmod` are the underlying type of a domain and its modifier. `fields` are the attributes of a composite, and
    `relation` is the OID under which the catalogue lists them. `delimiter` separates an array's elements. A type that
    is no longer in the catalogue has the kind `unknown`, and its values are published as text. `certain` is false if
    the type may have had other attributes when the values to convert were written.
    """

    oid: int
    name: str
    kind: TypeKind
    element: "PgType | None" = None
    base: "PgType | None" = None
    typmod: int = -1
    fields: "tuple[CompositeAttribute, ...]" = ()
    delimiter: bytes = b","
    relation: int = 0
    certain: bool = True

    @property
    def parts(self) -> "tuple[PgType, ...]":
        """The types that this type is built from."""
        inner = tuple(part for part in (self.element, self.base) if part is not None)
        return (*inner, *(attribute.type for attribute in self.fields))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompositeAttribute:
    """One attribute of a composite type."""

    name: str
    type: PgType
    typmod: int


def composites(type_: PgType) -> frozenset[int]:
    """Returns the `relation` of each composite that the type is or contains.

    ALTER TYPE or ALTER TABLE can change the attributes of these composites.
    """
    own = {type_.relation} if type_.relation else set()
    return frozenset(own.union(*map(composites, type_.parts)))


def in_doubt(type_: PgType) -> PgType:
    """Returns the type, marked uncertain: its composites may have had other attributes when a value was written."""
    return replace(
        type_,
        certain=False,
        element=None if type_.element is None else in_doubt(type_.element),
        base=None if type_.base is None else in_doubt(type_.base),
    )


class TypeCatalog:
    """Resolves type OIDs with `query` and caches the results."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._types: dict[int, PgType] = {}

    def resolve(self, oid: int) -> PgType:
        """Returns the type with this `oid`; its kind is `unknown` if the catalogue no longer has such a type."""
        if oid not in self._types:
            self._types[oid] = self._read(oid)
        return self._types[oid]

    def _read(self, oid: int) -> PgType:
        rows = self._query(_TYPE, [oid])
        if not rows:
            return PgType(oid=oid, name=str(oid), kind="unknown")
        name, typtype, is_array, element, subtype, multirange_of, base, typmod, relation, delimiter = rows[0]
        match typtype:
            case "b" if is_array:
                return PgType(
                    oid=oid, name=name, kind="array", element=self.resolve(element), delimiter=delimiter.encode()
                )
            case "b":
                return PgType(oid=oid, name=name, kind="base")
            case "e":
                return PgType(oid=oid, name=name, kind="enum")
            case "d":
                return PgType(oid=oid, name=name, kind="domain", base=self.resolve(base), typmod=typmod)
            case "c":
                return PgType(
                    oid=oid, name=name, kind="composite", fields=self._attributes(relation), relation=relation
                )
            case "r":
                return PgType(oid=oid, name=name, kind="range", element=self.resolve(subtype))
            case "m":
                return PgType(oid=oid, name=name, kind="multirange", element=self.resolve(multirange_of))
        return PgType(oid=oid, name=name, kind="unknown")

    def _attributes(self, relation: int) -> tuple[CompositeAttribute, ...]:
        rows = self._query(_ATTRIBUTES, [relation])
        return tuple(CompositeAttribute(name=name, type=self.resolve(oid), typmod=typmod) for name, oid, typmod in rows)


# Only types that array_out prints are arrays. int2vector and oidvector have elements, too, but are printed differently.
_TYPE = """
SELECT CASE WHEN n.nspname = 'pg_catalog' OR (t.typname = 'hstore' AND e.extname = 'hstore')
            THEN t.typname::text ELSE n.nspname || '.' || t.typname END,
       t.typtype::text, t.typoutput = 'pg_catalog.array_out'::pg_catalog.regproc, t.typelem::bigint,
       r.rngsubtype::bigint, m.rngtypid::bigint, t.typbasetype::bigint, t.typtypmod, t.typrelid::bigint,
       t.typdelim::text
FROM pg_catalog.pg_type t
JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
LEFT JOIN pg_catalog.pg_range r ON r.rngtypid = t.oid
LEFT JOIN pg_catalog.pg_range m ON m.rngmultitypid = t.oid
LEFT JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_type'::pg_catalog.regclass AND d.objid = t.oid
  AND d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass AND d.deptype = 'e'
LEFT JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid
WHERE t.oid = %s
"""

_ATTRIBUTES = """
SELECT attname::text, atttypid::bigint, atttypmod FROM pg_catalog.pg_attribute
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
