"""Whether a schema may follow earlier ones: Avro's schema resolution, and stricter rules of a changelog's own."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from schemas.avro import Schema


class Mode(StrEnum):
    """Who must be able to read what, as Confluent's registry defines it; the transitive ones look at every version."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"


class Rule(StrEnum):
    """What a change runs against."""

    FIELD_NO_DEFAULT = "FIELD_NO_DEFAULT"
    TYPE_CHANGED = "TYPE_CHANGED"
    NAME_MISMATCH = "NAME_MISMATCH"
    BRANCH_MISSING = "BRANCH_MISSING"
    SYMBOL_MISSING = "SYMBOL_MISSING"
    FIXED_SIZE = "FIXED_SIZE"
    AMBIGUOUS = "AMBIGUOUS"
    LOGICAL_TYPE = "LOGICAL_TYPE"
    DECIMAL = "DECIMAL"
    DEFAULT_INVALID = "DEFAULT_INVALID"
    FIELD_RENAMED = "FIELD_RENAMED"
    COLUMN_CHANGED = "COLUMN_CHANGED"
    KEY_NULLABLE = "KEY_NULLABLE"
    KEY_CHANGED = "KEY_CHANGED"
    PARTITION_CHANGED = "PARTITION_CHANGED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One reason why a schema may not follow another."""

    rule: Rule
    path: str  # a pointer into the new schema, fields by name: /fields/current/fields/amount
    breaks: str  # "new readers", which cannot read what was written with the old schema, or "old readers"
    against: str  # the older version's label; empty for what is wrong in the new schema alone
    text: str  # what is wrong
    hint: str  # the way out
    strict: bool  # Avro's own resolution would let it pass


def problems(new: Schema, old: Sequence[tuple[str, Schema]], mode: Mode) -> list[Problem]:
    """What keeps `new` from following `old`: the earlier versions, oldest first, each with its label."""
    raise NotImplementedError
