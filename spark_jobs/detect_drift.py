"""`spark-submit spark_jobs/detect_drift.py`: compares the changelog with its source, even while both are being written.

Both sides are compared as of one snapshot of the database: a row of the changelog counts only if the snapshot shows its
transaction. First, the job waits until the changelog has caught up with the snapshot, because a lag would look like
drift. It reports differences by key and column, as a page and as JSON. It also writes a file of all drifted keys, which
`changelog republish` can read.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from changelog.connectors.config import Config, FilesConfig
from changelog.envelope.errors import ChangelogError, Kind
from changelog.spark_jobs.runner.arguments import folder, moment, path_or_uri, positive, seconds
from changelog.spark_jobs.runner.job import Job, main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from changelog.spark_jobs.drift.foreign_run import ForeignSource
    from changelog.spark_jobs.drift.key_ranges import KeyRange
    from changelog.spark_jobs.drift.report_json import Request

OUT = "drift"


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        type=folder,
        metavar="DIR",
        help="the folder for reports (drift, beside the configuration)",
    )
    parser.add_argument("--entities", nargs="+", default=[], metavar="ENTITY", help="compare only these entities")
    parser.add_argument(
        "--since",
        type=moment,
        metavar="POSITION|TIME",
        help="compare only keys that changed after a position or a time; does not find keys that the changelog lacks",
    )
    parser.add_argument(
        "--sample",
        type=_share,
        metavar="SHARE",
        help="compare only this share of the keys, such as 0.01; every run chooses the same keys",
    )
    parser.add_argument(
        "--from",
        dest="first",
        metavar="KEY",
        help="compare only keys whose first column is at least KEY; needs --entities with one entity, and does not "
        "read the rest of its table",
    )
    parser.add_argument(
        "--below", dest="end", metavar="KEY", help="compare only keys whose first column is less than KEY"
    )
    parser.add_argument(
        "--wait",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="how long to wait until the changelog has caught up with the snapshot (%(default)s)",
    )
    parser.add_argument(
        "--archive",
        type=path_or_uri,
        metavar="PATH",
        help="compare the archive at PATH instead of the published changelog",
    )
    parser.add_argument("--partitions", type=positive, metavar="N", help="read the source in N tasks")
    other = parser.add_argument_group("for a source other than the service's database; such a comparison is not exact")
    other.add_argument(
        "--source", metavar="FORMAT", help="the Spark format of the source: jdbc, parquet, …; needs one entity"
    )
    other.add_argument(
        "--source-option",
        type=_option,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the format, such as path or dbtable; may be repeated",
    )
    other.add_argument(
        "--settle",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="how long to wait before keys that differ are compared again (%(default)s)",
    )
    parser.add_argument(
        "--repair", action="store_true", help="ask the service to repair the drift as the policy says (see [drift])"
    )


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 1e-6 <= share < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share: give at least 0.000001, and less than 1")
    return share


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError("should be NAME=VALUE")
    return name, value


def _plan(arguments: argparse.Namespace, config: Config) -> Mapping[str, object]:
    """Returns what a run would read and write. Looks up the tables in the database, but takes no snapshot."""
    from changelog.spark_jobs.drift.chosen_entities import entities_of  # noqa: PLC0415

    _refuse_several(arguments)
    if arguments.source is not None:
        return {
            "reads": [arguments.source, arguments.archive or _changelog(config)],
            "writes": str(_folder(arguments)),
            "entities": arguments.entities,
        }
    entities = entities_of(config, arguments.entities)
    return {
        "reads": [*(".".join(entity.table) for entity in entities), arguments.archive or _changelog(config)],
        "writes": str(_folder(arguments)),
        "entities": [entity.name for entity in entities],
        "repairs": arguments.repair,
    }


def _changelog(config: Config) -> str:
    return str(config.sink.path) if isinstance(config.sink, FilesConfig) else config.prefix


def _refuse_several(arguments: argparse.Namespace) -> None:
    ranged = arguments.first is not None or arguments.end is not None
    if (arguments.source is not None or ranged) and len(arguments.entities) != 1:
        options = "--from and --below work" if ranged else "--source works"
        raise ChangelogError(Kind.USAGE, f"{options} with one entity only", hint="name it: --entities ENTITY")
    if arguments.source is not None and arguments.repair:
        raise ChangelogError(
            Kind.USAGE, "--repair is not for --source: the service repairs from its own database", hint="leave it out"
        )


def _folder(arguments: argparse.Namespace) -> Path:
    folder: Path = arguments.out or arguments.config.parent / OUT
    return folder


def _run(spark: "SparkSession", arguments: argparse.Namespace, config: Config) -> Mapping[str, object]:
    from changelog.spark_jobs.drift import foreign_run, run  # noqa: PLC0415 - late: --help needs no Spark
    from changelog.spark_jobs.drift.report import finish, policies, read_earlier, write  # noqa: PLC0415
    from changelog.spark_jobs.drift.report_json import RunStart  # noqa: PLC0415

    _refuse_several(arguments)
    request, folder = _request(spark, arguments, config), _folder(arguments)
    earlier = read_earlier(folder)  # comes first, so that a damaged report is an error before the long comparison
    start = RunStart.now()
    if arguments.source is None:
        compared = run.detect(spark, request, start)
    else:
        compared = foreign_run.detect(spark, request, _foreign_source(arguments), start)
    file = arguments.config.absolute()
    report = finish(compared, policies(config, compared["entities"]), earlier, folder=folder, config=file)
    if arguments.repair:
        from changelog.spark_jobs.drift.repair import repair  # noqa: PLC0415

        report = repair(config, report, folder)
    return _summary(report, write(folder, report))


def _request(spark: "SparkSession", arguments: argparse.Namespace, config: Config) -> "Request":
    from changelog.spark_jobs.drift.compare import Scope  # noqa: PLC0415
    from changelog.spark_jobs.drift.report_json import Request  # noqa: PLC0415
    from changelog.spark_jobs.reading.as_of import resolve  # noqa: PLC0415
    from changelog.spark_jobs.reading.where import Archive, where_of  # noqa: PLC0415

    where = where_of(config) if arguments.archive is None else Archive(path=arguments.archive)
    since = None if arguments.since is None else resolve(spark, where, arguments.since)
    return Request(
        config=config,
        where=where,
        scope=Scope(since=since, share=arguments.sample, keys=_keys(arguments), tasks=arguments.partitions),
        names=arguments.entities,
        wait_s=arguments.wait,
        folder=_folder(arguments),
    )


def _keys(arguments: argparse.Namespace) -> "KeyRange | None":
    from changelog.spark_jobs.drift.key_ranges import KeyRange  # noqa: PLC0415

    if arguments.first is None and arguments.end is None:
        return None
    return KeyRange(first=arguments.first, end=arguments.end)


def _foreign_source(arguments: argparse.Namespace) -> "ForeignSource":
    from changelog.spark_jobs.drift.foreign_run import ForeignSource  # noqa: PLC0415

    return ForeignSource(format=arguments.source, options=dict(arguments.source_option), settle_s=arguments.settle)


def _summary(report: Mapping[str, Any], page: Path) -> Mapping[str, object]:
    """Returns the summary that is printed as the last line of the output."""
    entities = report["entities"].values()

    def total(name: str) -> int:
        return sum(entity[name] or 0 for entity in entities)

    return {
        "verdict": report["verdict"],
        **({} if report["why"] is None else {"why": report["why"]}),
        "exact": report["exact"],
        "entities": len(report["entities"]),
        **{name: total(name) for name in ("sourceRows", "changelogRows", "missing", "extra", "changed", "drifted")},
        "report": str(page),
    }


def _figures(summary: Mapping[str, object]) -> str:
    """Returns the report's figures as metrics, for --metrics."""
    from changelog.spark_jobs.drift.report import prometheus  # noqa: PLC0415

    if "report" not in summary:
        return ""
    return prometheus(json.loads(Path(str(summary["report"])).with_name("report.json").read_bytes()))


JOB = Job(
    name="detect_drift",
    description=__doc__ or "",
    add_arguments=_arguments,
    plan=_plan,
    run=_run,
    figures=_figures,
)

if __name__ == "__main__":
    sys.exit(main(JOB))
