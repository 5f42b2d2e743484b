"""Tests the number of partitions in which `maintain_view` exchanges the rows of a batch. No Spark runs here."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from changelog.spark_jobs.maintain_view import SHUFFLE_PARTITIONS, exchange_in_few_partitions


@pytest.mark.parametrize(("configured", "expected"), [({}, "6"), ({SHUFFLE_PARTITIONS: "200"}, None)])
def test_there_are_two_partitions_for_each_core_unless_configured(
    configured: dict[str, str], expected: str | None
) -> None:
    settings: dict[str, str] = {}
    context = SimpleNamespace(
        defaultParallelism=3, getConf=lambda: SimpleNamespace(contains=lambda name: name in configured)
    )
    session = SimpleNamespace(sparkContext=context, conf=SimpleNamespace(set=settings.__setitem__))
    exchange_in_few_partitions(cast(Any, session))
    assert settings.get(SHUFFLE_PARTITIONS) == expected
