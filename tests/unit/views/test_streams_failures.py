"""Tests when a failed thread of Kafka Streams is replaced, and when its error ends Kafka Streams. No Java runs here."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

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
    for name in ("AGAIN_S", "_ASK_AGAIN_S"):
        monkeypatch.setattr(failures, name, 0.001)


class Clock:
    """A clock that `find_members` advances by a second at each call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: list[list[str] | None]) -> None:
        self.now_s, self._answers = 0.0, answers
        monkeypatch.setattr(failures, "time", SimpleNamespace(monotonic=lambda: self.now_s))

    def find_members(self) -> list[str]:
        """Returns the next answer, and repeats the last one. The answer None is an error."""
        self.now_s += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer is None:
            raise ChangelogError(Kind.CONNECTION, "no coordinator")
        return answer


@pytest.mark.parametrize(
    ("error", "advertised", "kind", "text"),
    [
        ("FencedInstanceIdException", None, Kind.IN_USE, "took over the application app-views; run only one of them"),
        ("FencedInstanceIdException", "a:1", Kind.IN_USE, "took over the address a:1; run only one of them, or give"),
        ("InvalidSessionTimeoutException", "a:1", Kind.PRECONDITION, "the broker does not allow a session of 20 s;"),
    ],
)
def test_an_error_that_would_come_again_ends_kafka_streams(
    error: str, advertised: str | None, kind: Kind, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = failures_of(Clock(monkeypatch, [taken_over()]).find_members, advertised)
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


@pytest.mark.parametrize(("session_s", "patience_s"), [(12.0, 30), (20.0, 40)])
def test_a_name_that_stays_in_the_group_belongs_to_another_process(
    session_s: float, patience_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, [taken_over()])
    failed = Failures("app-views", MEMBER, clock.find_members, advertised="a:1", session_s=session_s)
    assert not failed.again_after(FENCED, THREAD)
    assert clock.now_s == patience_s


def test_while_kafka_does_not_answer_nobody_took_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with capture_logs() as events:
        clock = Clock(monkeypatch, [taken_over(), *[None] * 100, taken_over(), nobody()])
        assert failures_of(clock.find_members, "a:1").again_after(FENCED, THREAD)
    assert [event["event"] for event in events][:-1] == ["cannot find out whether another process took over"]


def test_a_fenced_thread_stops_waiting_once_another_thread_has_ended_kafka_streams() -> None:
    def find_members() -> list[str]:
        assert not failed.again_after("InvalidSessionTimeout", THREAD)
        return taken_over()

    failed = failures_of(find_members, "a:1")
    assert not failed.again_after(FENCED, THREAD)
    with pytest.raises(ChangelogError, match="the broker does not allow a session"):
        failed.refuse()


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
