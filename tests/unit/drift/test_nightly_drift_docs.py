"""docs/how-to/nightly-drift.md and the alert rules: what they hold is well formed, and what they name is there."""

import ast
import importlib
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from changelog.connectors import cli
from changelog.spark_jobs.detect_drift import JOB
from changelog.spark_jobs.drift.report import finish, prometheus
from changelog.spark_jobs.runner import job
from tests.unit.drift.examples import NIGHTS
from tests.unit.drift.reports import entity, report, skipped

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "how-to" / "nightly-drift.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


SHELL = "\n".join(blocks("sh"))
(CRONJOB,) = [YAML(typ="safe").load(block) for block in blocks("yaml")]
POD = CRONJOB["spec"]["jobTemplate"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


def submitted(text: str) -> list[str]:
    """The job's own arguments in a command line."""
    words = shlex.split(text.replace("\\\n", " "))
    (place,) = [number for number, word in enumerate(words) if word.endswith("detect_drift.py")]
    return words[place + 1 :]


LINES = [each for each in re.split(r"(?<!\\)\n", SHELL) if "detect_drift.py" in each]


def dag_arguments() -> list[str]:
    (source,) = blocks("python")
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.keyword)]
    (given,) = [node.value for node in calls if node.arg == "application_args"]
    assert isinstance(given, ast.List)
    return [str(each.value) if isinstance(each, ast.Constant) else "/out" for each in given.elts]


@pytest.mark.parametrize("words", [*map(submitted, LINES), submitted(CONTAINER["command"][2]), dag_arguments()])
def test_the_job_takes_what_it_is_given(words: list[str]) -> None:
    found = job._parser(JOB).parse_args(words)
    assert (found.repair, found.config.name) == (True, "changelog.toml")


def test_there_are_as_many_ways_to_run_it_as_promised() -> None:
    assert len(LINES) == 3
    assert [line for line in blocks("cron")[0].splitlines() if not re.fullmatch(r"(\S+ ){5} changelog  .+", line)] == []


def test_scripts_parse() -> None:
    done = subprocess.run(["sh", "-n"], input=SHELL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_dag_compiles_and_judges_every_verdict() -> None:
    (source,) = blocks("python")
    compile(source, "dag.py", "exec")
    for verdict in ("severe", "not caught up", "refused"):
        assert f'"{verdict}"' in source


def test_the_cron_job_tries_again_what_could_not_be_compared_and_nothing_else() -> None:
    spec = CRONJOB["spec"]["jobTemplate"]["spec"]
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert POD["restartPolicy"] == "Never"  # else a policy is refused
    assert rule["onExitCodes"]["containerName"] == CONTAINER["name"]
    assert {*rule["onExitCodes"]["values"], 0, 5} == {*job._CODES.values(), 2, job._FAILED}
    assert {each["name"] for each in CONTAINER["volumeMounts"]} == {each["name"] for each in POD["volumes"]}


def test_the_table_of_exit_codes_is_the_jobs() -> None:
    told: dict[str, int] = {}
    for code, verdicts in re.findall(r"^\| (\d) \| ([^|]+) \|", PAGE, re.MULTILINE):
        told |= {verdict: int(code) for verdict in re.findall(r"`([^`]+)`", verdicts) if verdict != "failed"}
    assert told == {name: job._CODES[name] for name in ("clean", "drift", "severe", "not caught up", "refused")}


@pytest.mark.parametrize("command", re.findall(r"^(changelog .*?)(?: +#.*)?$", SHELL, re.MULTILINE))
def test_commands_parse(command: str) -> None:
    words = shlex.split(command)[1:]
    module: Any = importlib.import_module(f"changelog.connectors.commands.{words[0]}")
    assert cli.parser_of({words[0]: module}).parse_args(words).command == words[0]


def test_the_commands_that_a_report_gives_parse() -> None:
    for make in NIGHTS.values():
        for found in make()["entities"].values():
            if found["action"]["command"] is not None:
                test_commands_parse(found["action"]["command"])


def figures(made: Any) -> dict[str, float]:
    lines = prometheus(made).splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def test_metrics_that_are_named_exist() -> None:
    known = {name.partition("{")[0] for name in figures(NIGHTS["drift"]())}
    rules = YAML(typ="safe").load(DOCS / "alerts.yml")["groups"]
    (group,) = [each for each in rules if each["name"] == "changelog-drift"]
    asked = " ".join(rule["expr"] for rule in group["rules"])
    assert set(re.findall(r"changelog_drift_\w+", asked)) <= known
    assert set(re.findall(r"`(changelog_drift_[a-z_]+)", PAGE)) == known
    assert re.findall(r"^\| `(Changelog\w+)`", PAGE, re.MULTILINE) == [rule["alert"] for rule in group["rules"]]


def test_figures_of_a_run() -> None:
    entities = {"order": entity(changed=2, missing=1), "guest": entity(), "event": skipped()}
    found = figures(finish(report(entities=entities), {}, []))
    assert found['changelog_drift_drifted_keys{entity="order",kind="changed",name="booking"}'] == 2
    assert found['changelog_drift_drifted_keys{entity="order",kind="missing",name="booking"}'] == 1
    assert found['changelog_drift_open_keys{entity="order",name="booking"}'] == 3
    assert found['changelog_drift_rows_compared{entity="guest",name="booking",side="source"}'] == 1e6
    assert found['changelog_drift_verdict{name="booking",verdict="drift"}'] == 1
    assert found['changelog_drift_verdict{name="booking",verdict="clean"}'] == 0
    assert found['changelog_drift_fence_lag_seconds{name="booking"}'] == 0.4
    assert found['changelog_drift_duration_seconds{name="booking"}'] == 12.3
    assert found['changelog_drift_last_success_timestamp_seconds{name="booking"}'] == 1793502612
    assert not [name for name in found if "event" in name]


def test_a_run_that_could_not_compare_is_no_success() -> None:
    found = figures(finish(report(entities={}, verdict="refused", fence=None), {}, []))
    assert not [name for name in found if "success" in name or "fence" in name]
    assert found['changelog_drift_verdict{name="booking",verdict="refused"}'] == 1
    assert found['changelog_drift_finished_timestamp_seconds{name="booking"}'] == 1793502612


def test_the_figures_are_of_the_text_format() -> None:
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415, untyped

    families = list(text_string_to_metric_families(prometheus(NIGHTS["severe"]())))
    assert {family.type for family in families} == {"gauge"}
    assert all(family.documentation for family in families)


def test_pictures_and_pages_that_are_linked_are_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)", PAGE):
        assert (DOCS / "how-to" / target).exists(), target
