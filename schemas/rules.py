"""Lists the rules that a schema change can break.

Some rules are `strict`: they are stricter than Avro's own. If a change breaks one of these, Avro can still decode the
data, but the values may be wrong, or Avro's libraries disagree about them.

| strict rule | why |
|---|---|
| LOGICAL_TYPE | the same number or text means something else: milliseconds are read as microseconds, text as JSON |
| DECIMAL | another scale moves the decimal point; a smaller precision has no room for all digits |
| PROMOTION_LOSSY | a float has no room for every integer's digits; not all bytes are text |
| SYMBOL_MISSING, if the reader's enum has a default | the default replaces an unknown symbol, though nobody wrote it |
| AMBIGUOUS, if several fields or branches of the reader match one of the writer | libraries choose different ones |
| DEFAULT_INVALID | readers fail, or use a value that is not of the type; a registry may refuse the schema |
| KEY_CHANGED | later changes of a row would have another key than its earlier changes, so nothing connects them |
| PARTITION_CHANGED | changes would continue in another partition, and lose their order |
| KEY_NULLABLE | a null key identifies no row |
| COLUMN_CHANGED | the same field would hold another column |
| FIELD_RENAMED | one field replaces another field of the same type: readers would silently lose the earlier values |
"""

from dataclasses import dataclass
from enum import StrEnum


class Rule(StrEnum):
    """A rule that a change can break."""

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
class Incompatibility:
    """One reason why a reader cannot read a writer's data, or reads values that the writer did not mean."""

    rule: Rule
    path: str
    text: str
    for_reader: str  # what to do if the reader's schema can still be changed
    for_writer: str  # what to do if the writer's schema can still be changed
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SideNames:
    """What the text of an `Incompatibility` calls the two schemas."""

    reader: str = "the reader's schema"
    writer: str = "the writer's schema"
