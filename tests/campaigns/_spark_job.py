"""Runs a Spark job as a process group that campaigns can start and kill."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from changelog.connectors import failpoints
from tests.campaigns._service import ROOT
from tests.servers import CACHE, HASTY_JAVA, HASTY_WORKERS

ENDS_S = 300.0
"""How many seconds a run may take."""


class SparkJob:
    """Runs `spark-submit spark_jobs/NAME.py` with these arguments. Its log and its temporary files are in `folder`.

    With `jars`, the job can use Kafka and Delta Lake. Each run gets the environment variables of the campaign and those
    in `environment`.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        arguments: Sequence[str],
        *,
        jars: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._name, self._folder, self._arguments = name, folder, arguments
        self._jars = sorted((CACHE / "jars").glob("*.jar")) if jars else []
        self._environment = environment or {}
        self._log = folder / "job.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str, fail_at: str | None = None) -> None:
        """Starts a run with further arguments. If `fail_at` is given, the run crashes at this fail point (a line of
        code with a name).
        """
        environment = {
            **os.environ,
            **self._environment,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self._folder),  # so that the temporary files of killed runs are deleted with the folder
        }
        environment.pop(failpoints.VARIABLE, None)
        if fail_at is not None:
            environment[failpoints.VARIABLE] = fail_at
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._submit(), *self._arguments, *options],
                env=environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _submit(self) -> list[str]:
        settings = {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.local.dir": str(self._folder / "local"),
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(self._folder / "warehouse"),
            "spark.ui.enabled": "false",
            **HASTY_WORKERS,
        }
        return [
            str(Path(sys.executable).parent / "spark-submit"),
            *("--master", "local[2]", "--driver-memory", "1g"),
            *("--driver-java-options", HASTY_JAVA),
            *(("--jars", ",".join(map(str, self._jars))) if self._jars else ()),
            *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
            str(ROOT / "spark_jobs" / f"{self._name}.py"),
        ]

    def ended(self, timeout_s: float) -> int | None:
        """Waits until the job ends. Returns its exit code, or None if it still runs after `timeout_s` seconds."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Kills the whole process group with SIGKILL."""
        if self._process is not None:
            with suppress(ProcessLookupError):  # all processes have ended
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def finish(self, *options: str) -> Mapping[str, object]:
        """Runs the job to its end, and returns its summary."""
        self.start(*options)
        code = self.ended(ENDS_S)
        assert code == 0, f"the job ended with {code}: {self.said()[-3000:]}"
        summary: Mapping[str, object] = json.loads(self.said().rstrip().rpartition("\n")[2])
        return summary

    def said(self) -> str:
        """The output of all runs so far."""
        return self._log.read_text("utf-8", "replace")
