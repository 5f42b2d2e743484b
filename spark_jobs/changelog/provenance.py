"""What is asked of a change's provenance as the text that it is."""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

_CONTEXT: Final = ',"context":'


def source_text() -> Column:
    """The provenance without its context, in which an application may write whatever is looked for in the source.

    Of a change with a context, that is all behind it. Needs the columns `provenance` and `context`.
    """
    provenance, context = F.col("provenance"), F.col("context")
    begin = F.instr(provenance, F.lit(_CONTEXT)) + F.lit(len(_CONTEXT)) + F.length(context)
    return F.when(context.isNull(), provenance).otherwise(F.substring(provenance, begin, F.length(provenance)))
