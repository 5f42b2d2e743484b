"""Tests that keys get the same partitions as with Kafka's Java client. The tests run that client's hash function."""

import random
import subprocess
from base64 import b64encode
from pathlib import Path

import pyarrow as pa
import pytest

from changelog.connectors.java.program import find_java
from changelog.envelope.key import murmur2, partition, partition_batch
from tests.servers import kafka_lib

KEYS = 5_000
COUNTS = (1, 2, 3, 12, 50, 9_973)

Answers = list[tuple[bytes, int, int]]


@pytest.fixture(scope="module")
def answers(seed: int, starts_servers: None) -> Answers:
    """Random keys, each with the results of `Utils.murmur2` and `Utils.toPositive`."""
    chance = random.Random(seed)
    keys = [b"", b"\0", "Zürich".encode(), "東京".encode(), "🏨".encode(), b"\xff" * 9, b"x" * 100_000]
    keys += [chance.randbytes(chance.randrange(40)) for _ in range(KEYS)]
    keys += [str(chance.randrange(10**12)).encode() for _ in range(KEYS)]
    keys += ["".join(chr(chance.randrange(0x20, 0xD800)) for _ in range(n % 20)).encode() for n in range(KEYS)]
    program = Path(__file__).with_name("Murmur2.java")
    jars = f"{kafka_lib()}/*"
    java = [find_java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", jars, str(program)]
    encoded = b"\n".join(map(b64encode, keys)) + b"\n"
    lines = subprocess.run(java, input=encoded, capture_output=True, check=True).stdout.splitlines()
    pairs = [tuple(map(int, line.split())) for line in lines]
    return [(key, hash_, positive) for key, (hash_, positive) in zip(keys, pairs, strict=True)]


def test_the_hash_is_the_same_as_in_java(answers: Answers) -> None:
    assert {hash_ < 0 for _, hash_, _ in answers} == {True, False}
    for key, hash_, _ in answers:
        assert murmur2(key) == hash_ & 0xFFFFFFFF, key[:80]


@pytest.mark.parametrize("count", COUNTS)
def test_the_partition_is_the_same_as_in_java_for_one_key_and_for_a_column(answers: Answers, count: int) -> None:
    expected = [positive % count for _, _, positive in answers]
    assert [partition(key, count) for key, _, _ in answers] == expected
    assert partition_batch(pa.array([key for key, _, _ in answers], pa.binary()), count).tolist() == expected
