"""Searches the provenance of changes as text, with Spark expressions."""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

_CONTEXT: Final = ',"context":'


def source_text() -> Column:
    """Returns the part of the provenance's text in which a job can search. It does not contain the stamp's context.

    An application can write anything into a context, even the text for which a job searches. So if a change has a
    context, the result is only the part of the provenance after the context; otherwise, it is the whole provenance. The
    rows must have the columns `provenance` and `context`.
    """
    provenance, context = F.col("provenance"), F.col("context")
    begin = F.instr(provenance, F.lit(_CONTEXT)) + F.lit(len(_CONTEXT)) + F.length(context)
    return F.when(context.isNull(), provenance).otherwise(F.substring(provenance, begin, F.length(provenance)))
