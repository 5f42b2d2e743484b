"""Tests which errors of its threads end Kafka Streams. No Java runs here."""

from collections.abc import Callable

import pytest

from changelog.connectors.views.streams import failures
from changelog.connectors.views.streams.failures import Failures, text_of
from changelog.envelope.errors import ChangelogError, Kind

MEMBER = "app-views-a_1-5f0c"
THREAD = "app-views-11111111-StreamThread-2"
FENCED = "org.apache.kafka.common.errors.FencedInstanceIdException: text"


def nobody() -> list[str]:
    return [f"{MEMBER}-1", "app-views-b_1-77-2"]


def taken_over() -> list[str]:
    return [f"{MEMBER}-1", f"{MEMBER}-2"]


def failures_of(find_members: Callable[[], list[str]] = nobody, advertised: str | None = None) -> Failures:
    return Failures("app-views", MEMBER, find_members, advertised=advertised, session_s=20.0)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AGAIN_S", "_ASK_AGAIN_S", "_PATIENCE_S", "_SESSIONS"):
        monkeypatch.setattr(failures, name, 0.001)


@pytest.mark.parametrize(
    ("error", "advertised", "kind", "text"),
    [
        ("FencedInstanceIdException", None, Kind.IN_USE, "took over the application app-views; run only one of them"),
        ("FencedInstanceIdException", "a:1", Kind.IN_USE, "took over the address a:1; run only one of them, or give"),
        ("InvalidSessionTimeoutException", "a:1", Kind.PRECONDITION, "the broker does not allow a session of 20 s;"),
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


def test_a_thread_that_was_fenced_is_replaced_if_its_name_leaves_the_group() -> None:
    answers = [taken_over(), taken_over(), nobody()]
    failed = failures_of(lambda: answers.pop(0), "a:1")
    assert failed.again_after(FENCED, THREAD)
    assert answers == []
    assert failed.has_failed_thread
    failed.refuse()


def test_kafka_is_asked_again_for_the_members_if_it_does_not_answer() -> None:
    answers = [ChangelogError(Kind.CONNECTION, "no coordinator"), ChangelogError(Kind.CONNECTION, "no coordinator")]

    def find_members() -> list[str]:
        if answers:
            raise answers.pop()
        return nobody()

    assert failures_of(find_members, "a:1").again_after(FENCED, THREAD)
    assert answers == []


def test_a_process_that_must_be_the_only_one_ends_if_it_was_fenced() -> None:
    failed = failures_of(nobody)
    assert not failed.again_after(FENCED, THREAD)
    with pytest.raises(ChangelogError, match="if no other process runs, a broker has failed: start the command again"):
        failed.refuse()


def test_a_thread_that_fails_while_kafka_streams_is_being_ended_is_not_replaced() -> None:
    failed = failures_of(taken_over, "a:1")
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
