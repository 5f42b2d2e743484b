"""Tests which errors of its threads end Kafka Streams. No Java runs here."""

from collections.abc import Callable, Mapping

import pytest

from changelog.connectors.views.streams import failures
from changelog.connectors.views.streams.failures import Failures, text_of
from changelog.envelope.errors import ChangelogError, Kind

MEMBER = "app-views-a_1-5f0c"
THREAD = "app-views-11111111-StreamThread-2"
FENCED = "org.apache.kafka.common.errors.FencedInstanceIdException: text"


def nobody() -> Mapping[str, str]:
    return {}


def taken_over() -> Mapping[str, str]:
    return {f"{MEMBER}-1": "app-views-11111111-StreamThread-1-consumer", f"{MEMBER}-2": "app-views-2222-StreamThread-2"}


def failures_of(find_members: Callable[[], Mapping[str, str]] = nobody, advertised: str | None = None) -> Failures:
    return Failures("app-views", MEMBER, find_members, advertised=advertised, session_s=3600.0)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "AGAIN_S", 0.001)


@pytest.mark.parametrize(
    ("error", "advertised", "kind", "text"),
    [
        ("FencedInstanceIdException", None, Kind.IN_USE, "took over the application app-views; run only one of them"),
        ("FencedInstanceIdException", "a:1", Kind.IN_USE, "took over the address a:1; run only one of them, or give"),
        ("InvalidSessionTimeoutException", "a:1", Kind.PRECONDITION, "the broker does not allow a session of 3600 s;"),
    ],
)
def test_an_error_that_would_come_again_ends_kafka_streams(
    error: str, advertised: str | None, kind: Kind, text: str
) -> None:
    failed = failures_of(taken_over, advertised)
    failed.refuse()
    assert not failed.again_after(f"org.apache.kafka.common.errors.{error}: text", THREAD)
    with pytest.raises(ChangelogError, match=text) as caught:
        failed.refuse()
    assert caught.value.kind is kind
    assert not failed.again_after("any other error", THREAD)


def test_a_thread_that_was_fenced_though_nobody_took_over_is_replaced() -> None:
    own = {f"{MEMBER}-2": "app-views-11111111-StreamThread-2-consumer", "app-views-b_1-77-2": "app-views-3333-consumer"}
    for members in (own, {}):
        failed = failures_of(lambda members=members: members)  # type: ignore[misc]
        assert failed.again_after(FENCED, THREAD)
        assert failed.has_failed_thread
        failed.refuse()


def test_who_took_over_is_asked_until_kafka_answers() -> None:
    answers = [ChangelogError(Kind.CONNECTION, "no coordinator"), ChangelogError(Kind.CONNECTION, "no coordinator")]

    def find_members() -> Mapping[str, str]:
        if answers:
            raise answers.pop()
        return taken_over()

    assert not failures_of(find_members).again_after(FENCED, THREAD)
    assert answers == []


def test_a_thread_that_fails_while_kafka_streams_is_being_ended_is_not_replaced() -> None:
    failed = failures_of(taken_over)
    failed.end()
    assert not failed.again_after(FENCED, THREAD)
    assert not failed.again_after("java.lang.RuntimeException", THREAD)
    failed.refuse()


def test_the_thread_of_small_tables_is_not_replaced() -> None:
    failed = failures_of()
    assert failed.again_after("java.lang.RuntimeException", THREAD)
    assert not failed.again_after("java.lang.RuntimeException", "app-views-11111111-GlobalStreamThread")
    with pytest.raises(ChangelogError, match="checkpoints cannot be followed any more"):
        failed.refuse()


class JavaError:
    def __init__(self, text: str, cause: "JavaError | None" = None) -> None:
        self._text, self._cause = text, cause

    def toString(self) -> str:  # noqa: N802 - Java's name
        return self._text

    def getCause(self) -> "JavaError | None":  # noqa: N802
        return self._cause


def test_the_text_of_an_error_has_those_of_its_causes() -> None:
    assert text_of(JavaError("a\n b", JavaError("c"))) == "a b: c"
