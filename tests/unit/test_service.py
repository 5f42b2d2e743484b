"""Tests the logs, metrics and health of a running service."""

import http.client
import io
import json
import re
import socket
import socketserver
import struct
import threading
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog
from structlog.testing import capture_logs

from changelog.connectors import config, logs
from changelog.connectors.service import service
from changelog.connectors.service.health import LIVE_WITHIN_S, HealthServer, HealthState
from changelog.connectors.service.metrics import Metrics
from changelog.connectors.service.service import Lag
from changelog.connectors.service.snapshot_progress import LOG_AGAIN_S, SnapshotProgress
from changelog.connectors.sources import SourceStatus
from changelog.connectors.wiring.status import probe
from changelog.envelope.errors import ChangelogError, Kind
from tests.patience import PATIENCE_S, until

CONFIG = """
name = "booking"
source = { kind = "postgres", dsn = "dbname=app" }
sink = { path = "log" }
tables = { include = ["*"] }
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_logs_for_a_machine_are_json_lines() -> None:
    out = io.StringIO()
    logs.configure(out, verbose=False)
    logger = structlog.get_logger()
    logger.debug("unseen")
    logger.info("commit stored", rows=3, entity="order")
    event = json.loads(out.getvalue())
    assert event.pop("timestamp").endswith("Z")
    assert event == {"event": "commit stored", "level": "info", "rows": 3, "entity": "order"}


def test_logs_for_a_person_are_readable_and_show_no_local_variables() -> None:
    out = Terminal()
    logs.configure(out, verbose=True)
    secret = "opensesame"
    try:
        raise ValueError(len(secret))
    except ValueError:
        structlog.get_logger().exception("went wrong", entity="order")
    assert "went wrong" in out.getvalue()
    assert "ValueError: 10" in out.getvalue()
    assert "opensesame" not in out.getvalue().replace('secret = "opensesame"', "")


def test_metrics_have_their_documented_names() -> None:
    metrics = Metrics()
    metrics.events.labels(entity="order", op="update").inc(2)
    metrics.original_unknown.labels(entity="order").inc()
    metrics.position.info({"position": "00000001/0000000000000001/00000002"})
    text = metrics.text().decode()
    assert 'changelog_events_total{entity="order",op="update"} 2.0' in text
    assert 'changelog_position_info{position="00000001/0000000000000001/00000002"} 1.0' in text
    names = {line.split(" ")[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert {
        "changelog_events_total",
        "changelog_lag_bytes",
        "changelog_lag_seconds",
        "changelog_commit_seconds",
        "changelog_transactions_total",
        "changelog_original_unknown_total",
        "changelog_restarts_total",
        "changelog_slot_retained_bytes",
        "changelog_windows_open",
        "changelog_position_info",
    } <= names


DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(server: HealthServer, path: str) -> tuple[int, str]:
    try:
        with DIRECT.open(f"http://{server.listen}{path}", timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_health_answers_follow_the_state_of_the_loop() -> None:
    now_s = [0.0]
    state = HealthState("booking", clock=lambda: now_s[0])
    with HealthServer(("127.0.0.1", 0), state, Metrics().text) as server:
        assert get(server, "/live") == (200, '{"ok": true, "name": "booking", "phase": "starting"}\n')
        assert get(server, "/ready")[0] == 503
        state.enter("streaming", ready=True)
        assert get(server, "/ready") == (200, '{"ok": true, "name": "booking", "phase": "streaming"}\n')
        state.waits_for = (7, 8)
        assert get(server, "/live")[1].endswith('"phase": "streaming", "waits_for": [7, 8]}\n')
        now_s[0] = LIVE_WITHIN_S
        assert get(server, "/live")[0] == get(server, "/ready")[0] == 503
        state.beat()
        assert get(server, "/live?probe=1")[0] == 200
        assert "changelog_lag_bytes 0.0" in get(server, "/metrics")[1]
        assert get(server, "/")[0] == 404


def test_a_probe_that_breaks_its_connection_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with HealthServer(("127.0.0.1", 0), HealthState("booking"), bytes) as server, capture_logs() as events:
        with socket.create_connection(server.address) as probe_connection:
            probe_connection.send(b"GET /live HTTP/1.1\r\n")
            probe_connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close sends RST
        until(lambda: bool(events), "the broken connection is not logged")
        assert get(server, "/live")[0] == 200
    assert [(event["event"], event["log_level"]) for event in events] == [("a probe broke its connection", "debug")]
    assert capsys.readouterr().err == ""


def test_an_error_of_the_metrics_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    def metrics() -> bytes:
        raise RuntimeError("no metrics")

    with HealthServer(("127.0.0.1", 0), HealthState("booking"), metrics) as server, capture_logs() as events:
        with pytest.raises(http.client.RemoteDisconnected):
            get(server, "/metrics")
        until(lambda: bool(events), "the error is not logged")
    assert [(event["event"], event["log_level"]) for event in events] == [("a probe was not answered", "error")]
    assert capsys.readouterr().err == ""


def test_health_is_served_on_an_ipv6_address() -> None:
    with HealthServer(("::1", 0), HealthState("booking"), bytes) as server:
        assert server.listen == f"[::1]:{server.address[1]}"
        assert get(server, "/live")[0] == 200


def answering(answer: bytes) -> socketserver.ThreadingTCPServer:
    """Returns a server that is not our service. It gives this answer to every request."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            self.wfile.write(answer)

    return socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b'HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"ok"',
        b'HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n{"name": "other"}',
    ],
)
def test_another_program_at_the_address_is_not_taken_for_the_service(answer: bytes, tmp_path: Path) -> None:
    with answering(answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        file = tmp_path / "changelog.toml"
        listen = f"127.0.0.1:{server.server_address[1]}"
        file.write_text(CONFIG + f'service = {{ listen = "{listen}" }}')
        assert probe(config.load(file, {})) == {}
        server.shutdown()
        thread.join()


def test_the_lag_is_unknown_until_the_loop_has_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "changelog.toml").write_text(CONFIG)
    running = service.Service(config.load(tmp_path / "changelog.toml", {}))
    shown: list[str] = []

    def status(through: str) -> SourceStatus:
        shown.extend(re.findall(r"^changelog_lag_bytes (.+)$", running._metrics.text().decode(), re.MULTILINE))
        if len(shown) == 2:
            running._watch.turned("8")
        if len(shown) == 4:
            running.stop()
        return SourceStatus(end="9", lag_bytes=5 if through else 1 << 50, waits_for=None, hold=None, retained=None)

    monkeypatch.setattr(service, "SAMPLE_S", 0.0)
    monkeypatch.setattr(running, "_database", SimpleNamespace(status=status))
    running._sample()
    assert shown == ["0.0", "0.0", "0.0", "5.0"]


def test_the_error_for_an_address_in_use_says_what_to_set() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ChangelogError, match=f"cannot listen on 127.0.0.1:{port} .*; set another") as caught:
            HealthServer(("127.0.0.1", port), HealthState("booking"), bytes)
    assert caught.value.kind is Kind.PRECONDITION


def test_the_lag_is_the_time_since_the_log_ended_at_the_changelogs_position() -> None:
    lag = Lag()
    assert lag.sample(10.0, "100", "100") == 0.0
    assert lag.sample(15.0, "300", "100") == 5.0
    assert lag.sample(20.0, "400", "320") == 5.0
    assert lag.sample(25.0, "400", "400") == 0.0


def test_a_lag_at_the_start_is_at_least_as_long_as_the_service_runs() -> None:
    lag = Lag()
    lag.sample(10.0, "500", "100")
    assert lag.sample(70.0, "600", "200") == 60.0


def test_the_progress_of_table_reads_is_a_metric_and_now_and_then_an_event() -> None:
    out = io.StringIO()
    logs.configure(out, verbose=False)
    metrics, now = Metrics(), [0.0]
    progress = SnapshotProgress(metrics, quiet=False, clock=lambda: now[0])
    reading = {"complete": False, "leaves": {"t": {"filenode": 1, "pages": 200, "left": [[150, None]]}}}
    complete = {"complete": True, "leaves": {"u": {"filenode": 1, "pages": 40, "left": []}}}
    progress.update({"order": reading, "guest": complete})
    assert out.getvalue() == ""
    now[0] = LOG_AGAIN_S
    for _ in range(2):
        progress.update({"order": reading, "guest": complete})
    [event] = map(json.loads, out.getvalue().splitlines())
    assert (event["event"], event["percent"]) == ("tables are being read", {"order": 75})
    text = metrics.text().decode()
    assert 'changelog_snapshot_pages_read{entity="order"} 150.0' in text
    assert 'changelog_snapshot_pages{entity="order"} 200.0' in text
    assert 'changelog_snapshot_pages_read{entity="guest"} 40.0' in text
