"""Expressions that search a change's provenance as text."""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

_CONTEXT: Final = ',"context":'


def source_text() -> Column:
    """The provenance without its context, because an application can write anything into that, even what we search for.

    If there is a context, this is the text after it. Needs the columns `provenance` and `context`.
    """
    provenance, context = F.col("provenance"), F.col("context")
    begin = F.instr(provenance, F.lit(_CONTEXT)) + F.lit(len(_CONTEXT)) + F.length(context)
    return F.when(context.isNull(), provenance).otherwise(F.substring(provenance, begin, F.length(provenance)))
