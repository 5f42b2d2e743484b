"""Tests which chunks `MarksJudge` counts as wrong.

Some programs read each chunk of a table between two marks, which they write into the log. The campaign `mysql_windows`
uses `MarksJudge` to show when this method fails.
"""

import pytest

from tests.campaigns._mysql.marks import MARK, MarksJudge

BEFORE = (7, 5, "1")
FIRST, SECOND = (MARK, 1, "2"), (MARK, 2, "4")
"""The two marks. Like `BEFORE`, each is a change in the log: the key of its row, the row's new version, and the commit.
"""


@pytest.mark.parametrize(
    ("between", "chunk", "wrong"),
    [
        ([], {7: 5, 8: 0}, 0),
        ([], {7: 4, 8: 0}, 1),  # the commit before the mark was not visible
        ([(7, 6, "3")], {7: 4, 8: 0}, 0),  # this row is left out, because it changed between the marks
        ([(8, 1, "3")], {7: 4, 8: 1}, 1),
    ],
)
def test_a_chunk_is_wrong_if_it_lacks_a_commit_before_its_first_mark(
    between: list[tuple[int, int, str]], chunk: dict[int, int], wrong: int
) -> None:
    judge = MarksJudge(chunks={2: chunk})
    for number, version, commit in [BEFORE, FIRST, *between, SECOND, (7, 9, "5")]:
        judge.add(number, version, commit)
    assert (judge.judged, judge.wrong) == (1, wrong)
    assert not judge.chunks


def test_rows_that_changed_only_before_the_log_was_read_are_not_judged() -> None:
    judge = MarksJudge(chunks={2: {7: 4}})
    for number, version, commit in [FIRST, SECOND]:
        judge.add(number, version, commit)
    assert (judge.judged, judge.wrong) == (1, 0)
