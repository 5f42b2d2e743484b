"""Runs the job `detect_drift` in this process, and returns what it found."""

import contextlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from changelog.spark_jobs.detect_drift import JOB
from changelog.spark_jobs.runner.job import main

Drifted = Mapping[tuple[str, str], tuple[str, ...]]
"""Maps the entity and the key of a drifted row to the kind of drift, followed by the sorted names of the columns that
differ.
"""


def detected(config: Path, folder: Path, *, wait_s: int = 120) -> tuple[Drifted, Mapping[str, Any]]:
    """Compares all entities of a configuration. Returns the drifted keys, and what the report says about each entity.

    The job gives the service up to `wait_s` seconds to catch up. Raises AssertionError if the job failed, or if it
    could not compare a key.
    """
    output, errors = io.StringIO(), io.StringIO()
    arguments = ["--config", str(config), "--out", str(folder), "--wait", str(wait_s)]
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = main(JOB, arguments)
    assert code in (0, 1, 4), f"the job ended with {code}: {errors.getvalue()}"
    page = Path(json.loads(output.getvalue().splitlines()[-1])["report"])
    entities = json.loads(page.with_name("report.json").read_bytes())["entities"]
    for name, entity in entities.items():
        assert entity["why"] is None, f"{name}: {entity['why']}"
    lines = [json.loads(line) for line in page.with_name("keys.jsonl").read_text("utf-8").splitlines()]
    return {(line["entity"], line["key"]): (line["kind"], *sorted(line["columns"])) for line in lines}, entities
