"""What a change of a schema may run against.

Some rules are `strict`: Avro would decode such data, but wrongly, or its libraries differ.

| strict rule | why |
|---|---|
| LOGICAL_TYPE | the same number or text means something else: milliseconds as microseconds, text as JSON |
| DECIMAL | another scale moves the point; a smaller precision has no room for the digits |
| PROMOTION_LOSSY | a float has no room for every integer's digits; not all bytes are text |
| SYMBOL_MISSING with a default | an unknown symbol becomes the default, which nobody wrote |
| AMBIGUOUS, where one of two would do | two names fit, and libraries differ in which they take |
| DEFAULT_INVALID | readers fail, or fill in what is none of the type's values; a registry may refuse the schema |
| KEY_CHANGED | an entity's changes would go on under another key: what came before is not found by it |
| PARTITION_CHANGED | they would go on in another partition: their order is lost |
| KEY_NULLABLE | a key of null is nobody's |
| COLUMN_CHANGED | the same field would be another column's |
| FIELD_RENAMED | a field goes, another of its type comes in its place: what was written would be lost without a word |
"""

from dataclasses import dataclass
from enum import StrEnum


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
    PROMOTION_LOSSY = "PROMOTION_LOSSY"
    DEFAULT_INVALID = "DEFAULT_INVALID"
    FIELD_RENAMED = "FIELD_RENAMED"
    COLUMN_CHANGED = "COLUMN_CHANGED"
    KEY_NULLABLE = "KEY_NULLABLE"
    KEY_CHANGED = "KEY_CHANGED"
    PARTITION_CHANGED = "PARTITION_CHANGED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Why a reader cannot read what a writer wrote, or reads something else."""

    rule: Rule
    path: str
    text: str
    for_reader: str  # the way out when the reader's schema is the one that can still be changed
    for_writer: str  # the way out when the writer's is
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """How a text calls the two schemas."""

    reader: str = "the reader's schema"
    writer: str = "the writer's schema"
