"""Tests that the API gives the answers that the page about served views shows, and that the page's code runs."""

import contextlib
import io
import json
import re
from pathlib import Path

from changelog.envelope.model import MISSING, Op
from tests.unit.records import record
from tests.unit.views.running import commit, running, settings

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "serve-views.md").read_text("utf-8")
BLOCK = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", re.DOTALL | re.MULTILINE)


def order(number: int, status: str) -> str:
    return json.dumps({"id": number, "status": status, "amount": "99.00"})


def test_the_answers_are_those_of_the_page(tmp_path: Path) -> None:
    changes = [
        record(Op.CREATE, order(41, "NEW"), commit=1, key="41"),
        record(Op.CREATE, order(42, "NEW"), commit=2, key="42"),
        record(Op.UPDATE, order(42, "PAID"), MISSING, commit=3, key="42"),
        record(Op.CREATE, order(43, "PAID"), commit=4, key="43"),
    ]
    commit(tmp_path / "log", changes)
    shown_row = re.search(r"^```json\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (code, output), _ = BLOCK.findall(PAGE)
    assert shown_row
    with running(settings(tmp_path)) as api, contextlib.redirect_stdout(io.StringIO()) as printed:
        assert api.get("/order/42").json == json.loads(shown_row[1])
        exec(code.replace("http://127.0.0.1:9466", api.address), {})
    assert printed.getvalue() == output
