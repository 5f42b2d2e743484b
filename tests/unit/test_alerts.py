"""Tests that Prometheus can read docs/alerts.yml, and that each alert fires only when it should."""

import re
import subprocess
from pathlib import Path

import pytest

from changelog.connectors.service.metrics import Metrics
from changelog.connectors.views.http.metrics import ViewMetrics
from tests.servers import promtool

RULES = Path(__file__).parents[2] / "docs/alerts.yml"

# Prometheus asks each service for its metrics every 15 s. The service `looping` fails 14 s after each start, so no
# process answers two requests.
SERIES = """
rule_files: [{rules}]
evaluation_interval: 15s
tests:
  - interval: 15s
    input_series:
      - {{series: 'up{{job="changelog", instance="steady"}}', values: '1x80'}}
      - {{series: 'up{{job="changelog", instance="gone"}}', values: '1x20 0x60'}}
      - {{series: 'up{{job="changelog", instance="looping"}}', values: '1 1 1 0 1 1 0 1 1 1 0 1 1 1 1 0 1 1 1x60'}}
      - {{series: 'up{{job="changelog", instance="hasty"}}', values: '0 0 1 0 0 0 1 0 0 0 1 0 0 0 0 1 0 0 0 1 0x60'}}
      - {{series: 'process_start_time_seconds{{job="changelog", instance="steady"}}', values: '100x80'}}
      - {{series: 'process_start_time_seconds{{job="changelog", instance="looping"}}', values: '100+14x80'}}
      - {{series: 'changelog_view_restoring_offsets{{instance="stuck"}}', values: '9x80'}}
      - {{series: 'changelog_view_restoring_offsets{{instance="busy"}}', values: '90-1x80'}}
      - {{series: 'changelog_view_restored_messages_total{{instance="stuck"}}', values: '5x80'}}
      - {{series: 'changelog_view_restored_messages_total{{instance="busy"}}', values: '0+1x80'}}
      - {{series: 'changelog_view_lag_offsets{{instance="stuck", entity="order"}}', values: '20000x80'}}
      - {{series: 'changelog_view_lag_offsets{{instance="busy", entity="order"}}', values: '0 20000x79'}}
      - {{series: 'changelog_view_standby_lag_offsets{{instance="busy", entity="order"}}', values: '10001x80'}}
    alert_rule_test:
      - {{eval_time: {at}, alertname: {alert}, exp_alerts: []}}
"""


def fires(folder: Path, alert: str, at: str) -> set[str]:
    """Returns the instances for which `alert` fires at the time `at`.

    The file for promtool expects no alerts, so promtool prints the alerts that fire.
    """
    file = folder / "test.yml"
    file.write_text(SERIES.format(rules=RULES, at=at, alert=alert))
    process = subprocess.run([promtool(), "test", "rules", file], capture_output=True, text=True, check=False)
    return set(re.findall(r'instance="(\w+)"', process.stdout + process.stderr))


@pytest.mark.parametrize(
    ("alert", "at", "instances"),
    [
        ("ChangelogDown", "4m", {"hasty"}),
        ("ChangelogDown", "12m", {"gone", "hasty"}),
        ("ChangelogRestarts", "12m", {"looping"}),
        ("ChangelogViewsNotRestored", "4m", set()),
        ("ChangelogViewsNotRestored", "17m", {"stuck"}),
        ("ChangelogViewsLag", "9m", {"stuck"}),
        ("ChangelogViewStandbysLag", "12m", {"busy"}),
    ],
)
def test_each_alert_fires_only_for_the_instances_that_it_is_meant_for(
    alert: str, at: str, instances: set[str], tmp_path: Path
) -> None:
    assert fires(tmp_path, alert, at) == instances


def test_prometheus_reads_the_rules_and_the_metrics() -> None:
    subprocess.run([promtool(), "check", "rules", RULES], check=True, capture_output=True)
    for metrics in (Metrics(), ViewMetrics()):
        subprocess.run([promtool(), "check", "metrics"], input=metrics.text(), check=True, capture_output=True)
