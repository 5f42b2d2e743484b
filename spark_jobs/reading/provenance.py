"""Searches the provenance of changes as text, with Spark expressions."""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

_CONTEXT: Final = ',"context":'


def source_text() -> Column:
    """Returns the provenance as text, for a search that must not match inside the context.

    An application can write anything into a context, even the text that a job searches for. So if a change has a
    context, the result is only the text after the context; if it has none, the complete provenance. The rows must have
    the columns `provenance` and `context`.
    """
    provenance, context = F.col("provenance"), F.col("context")
    begin = F.instr(provenance, F.lit(_CONTEXT)) + F.lit(len(_CONTEXT)) + F.length(context)
    return F.when(context.isNull(), provenance).otherwise(F.substring(provenance, begin, F.length(provenance)))
