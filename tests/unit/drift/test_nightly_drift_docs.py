"""Tests that docs/how-to/nightly-drift.md and the alert rules are valid, and that everything which they name exists."""

import ast
import importlib
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from changelog.connectors import cli
from changelog.envelope.errors import EXIT_CODES, Kind
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
    """Returns the arguments that a command line gives to the job `detect_drift.py`, without those for Spark."""
    words = shlex.split(text.replace("\\\n", " "))
    (place,) = [number for number, word in enumerate(words) if word.endswith("detect_drift.py")]
    return words[place + 1 :]


LINES = [line for line in re.split(r"(?<!\\)\n", SHELL) if "detect_drift.py" in line]


def dag_arguments() -> list[str]:
    (source,) = blocks("python")
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.keyword)]
    (arguments,) = [node.value for node in calls if node.arg == "application_args"]
    assert isinstance(arguments, ast.List)
    return [str(argument.value) if isinstance(argument, ast.Constant) else "/out" for argument in arguments.elts]


@pytest.mark.parametrize("words", [*map(submitted, LINES), submitted(CONTAINER["command"][2]), dag_arguments()])
def test_the_job_accepts_the_documented_arguments(words: list[str]) -> None:
    arguments = job._parser(JOB).parse_args(words)
    assert (arguments.repair, arguments.config.name) == (True, "changelog.toml")


def test_the_page_has_three_command_lines_and_a_valid_crontab() -> None:
    assert len(LINES) == 3
    assert [line for line in blocks("cron")[0].splitlines() if not re.fullmatch(r"(\S+ ){5} changelog  .+", line)] == []


def test_scripts_parse() -> None:
    process = subprocess.run(["sh", "-n"], input=SHELL, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


def test_the_dag_compiles_and_judges_every_verdict() -> None:
    (source,) = blocks("python")
    compile(source, "dag.py", "exec")
    for verdict in ("severe", "not caught up", "refused"):
        assert f'"{verdict}"' in source


def test_the_cron_job_repeats_only_runs_that_failed_or_could_not_compare() -> None:
    spec = CRONJOB["spec"]["jobTemplate"]["spec"]
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert POD["restartPolicy"] == "Never"  # otherwise Kubernetes refuses a podFailurePolicy
    assert rule["onExitCodes"]["containerName"] == CONTAINER["name"]
    codes = {*job._CODES.values(), EXIT_CODES[Kind.USAGE], job._FAILED}
    assert {*rule["onExitCodes"]["values"]} == codes - {0, job._FAILED, job._NOT_COMPARED}
    assert {volume["name"] for volume in CONTAINER["volumeMounts"]} == {volume["name"] for volume in POD["volumes"]}


def test_the_table_of_exit_codes_is_that_of_the_job() -> None:
    documented: dict[str, int] = {}
    for code, verdicts in re.findall(r"^\| (\d) \| ([^|]+) \|", PAGE, re.MULTILINE):
        documented |= {verdict: int(code) for verdict in re.findall(r"`([^`]+)`", verdicts) if verdict != "failed"}
    assert documented == {name: job._CODES[name] for name in ("clean", "drift", "severe", "not caught up", "refused")}


@pytest.mark.parametrize("command", re.findall(r"^(changelog .*?)(?: +#.*)?$", SHELL, re.MULTILINE))
def test_commands_parse(command: str) -> None:
    words = shlex.split(command)[1:]
    module: Any = importlib.import_module(f"changelog.connectors.commands.{words[0]}")
    assert cli.parser_of({words[0]: module}).parse_args(words).command == words[0]


def test_the_commands_that_a_report_gives_parse() -> None:
    for make in NIGHTS.values():
        for entity_report in make()["entities"].values():
            if entity_report["action"]["command"] is not None:
                test_commands_parse(entity_report["action"]["command"])


def figures(run_report: Any) -> dict[str, float]:
    lines = prometheus(run_report).splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def test_alert_rules_and_the_page_name_only_metrics_that_exist() -> None:
    metrics = {name.partition("{")[0] for name in figures(NIGHTS["drift"]())}
    rules = YAML(typ="safe").load(DOCS / "alerts.yml")["groups"]
    (group,) = [rule_group for rule_group in rules if rule_group["name"] == "changelog-drift"]
    expressions = " ".join(rule["expr"] for rule in group["rules"])
    assert set(re.findall(r"changelog_drift_\w+", expressions)) <= metrics
    assert set(re.findall(r"`(changelog_drift_[a-z_]+)", PAGE)) == metrics
    assert re.findall(r"^\| `(Changelog\w+)`", PAGE, re.MULTILINE) == [rule["alert"] for rule in group["rules"]]


def test_a_run_gives_a_figure_for_each_metric() -> None:
    entities = {"order": entity(changed=2, missing=1), "guest": entity(), "event": skipped()}
    values = figures(finish(report(entities=entities), {}, []))
    assert values['changelog_drift_drifted_keys{entity="order",kind="changed",name="booking"}'] == 2
    assert values['changelog_drift_drifted_keys{entity="order",kind="missing",name="booking"}'] == 1
    assert values['changelog_drift_open_keys{entity="order",name="booking"}'] == 3
    assert values['changelog_drift_rows_compared{entity="guest",name="booking",side="source"}'] == 1e6
    assert values['changelog_drift_verdict{name="booking",verdict="drift"}'] == 1
    assert values['changelog_drift_verdict{name="booking",verdict="clean"}'] == 0
    assert values['changelog_drift_fence_lag_seconds{name="booking"}'] == 0.4
    assert values['changelog_drift_duration_seconds{name="booking"}'] == 12.3
    assert values['changelog_drift_last_success_timestamp_seconds{name="booking"}'] == 1793502612
    assert not [name for name in values if "event" in name]


def test_a_run_that_could_not_compare_is_no_success() -> None:
    values = figures(finish(report(entities={}, verdict="refused", fence=None), {}, []))
    assert not [name for name in values if "success" in name or "fence" in name]
    assert values['changelog_drift_verdict{name="booking",verdict="refused"}'] == 1
    assert values['changelog_drift_finished_timestamp_seconds{name="booking"}'] == 1793502612


def test_the_figures_are_in_the_text_format() -> None:
    families = list(text_string_to_metric_families(prometheus(NIGHTS["severe"]())))
    assert {family.type for family in families} == {"gauge"}
    assert all(family.documentation for family in families)


def test_linked_pictures_and_pages_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)", PAGE):
        assert (DOCS / "how-to" / target).exists(), target
