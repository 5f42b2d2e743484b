"""Starts the Java processes of these tests with options for processes that end soon."""

import os
from collections.abc import Iterator

import pytest

from changelog.connectors.servers.kafka import BRIEF


@pytest.fixture(scope="package", autouse=True)
def brief_java() -> Iterator[None]:
    """Turns off Java's second compiler for all programs that these tests start: most processes end before this compiler
    pays off. The tests then need half of the CPU time.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "JAVA_TOOL_OPTIONS", " ".join(BRIEF))
        yield
