"""`changelog schemas check`: checks that schema files are compatible with their earlier versions."""

import argparse
import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from changelog.connectors import config
from changelog.connectors.commands.schemas import live
from changelog.connectors.commands.schemas.output import add_format
from changelog.connectors.config import KafkaConfig
from changelog.connectors.schema_files import git
from changelog.connectors.schema_files.files import Contract
from changelog.connectors.schema_files.generated import FOLDER
from changelog.connectors.schema_files.history import Earlier, in_folder, read
from changelog.connectors.schema_files.reports import FORMATS, CheckReport
from changelog.connectors.schema_files.verdicts import DEFAULT_MODE, Verdict, verdicts
from changelog.connectors.terminal import say
from changelog.connectors.wiring.sinks import kafka_needed, refuse_other_envelope
from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas.compatibility import Mode

INCOMPATIBLE, FAILED = 1, 3

GIT, REGISTRY = "git", "registry"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog schemas check`."""
    parser.add_argument(
        "path",
        nargs="*",
        type=Path,
        help=f"schema files, or folders of them; default: {FOLDER} beside the configuration",
    )
    comparison = parser.add_mutually_exclusive_group()
    comparison.add_argument(
        "--against",
        default=GIT,
        metavar="git:REF|registry:URL|DIR",
        help="where the earlier versions are: in git, on the main line up to REF (default: up to where HEAD left the "
        "main branch); in a registry (default: the configured one); or in a folder",
    )
    comparison.add_argument(
        "--live",
        action="store_true",
        help="compare with the live tables: show what `generate` would change, and which readers that breaks",
    )
    parser.add_argument(
        "--mode",
        choices=list(map(str, Mode)),
        default=str(DEFAULT_MODE),
        metavar="MODE",
        help=f"the compatibility mode of files that set none: {', '.join(Mode)}; default: {DEFAULT_MODE}",
    )
    add_format(parser, FORMATS)


def execute(arguments: argparse.Namespace) -> int:
    """Prints which readers or writers would break, and why. With `--live`, also prints what differs from the tables.

    Returns 3 if a file is invalid. Otherwise returns 1 if a reader or a writer would break, or if, with `--live`, a
    file differs from its table.
    """
    paths: list[Path] = arguments.path or [arguments.config.parent / FOLDER]
    contracts = list(read([path for path in paths if path.exists() or path.is_symlink()]))
    if arguments.live:
        report = _against_live(contracts, paths, arguments)
    else:
        earlier = read_earlier(contracts, paths, arguments)
        file_verdicts = verdicts(contracts, earlier, Mode(arguments.mode))
        _refuse_absent(paths, file_verdicts)
        report = CheckReport(against=earlier.against, verdicts=file_verdicts, notes=earlier.notes)
    say(FORMATS[arguments.format](report))
    if any(verdict.state == "invalid" for verdict in report.verdicts):
        return FAILED
    return INCOMPATIBLE if any(verdict.findings for verdict in report.verdicts) else 0


def _refuse_absent(paths: Sequence[Path], file_verdicts: Sequence[Verdict]) -> None:
    """Raises ChangelogError (USAGE) for a path that has no schema now, and had none in the earlier versions."""
    files = [Path(verdict.file).absolute() for verdict in file_verdicts]
    for path in paths:
        if not any(path.absolute() in (file, *file.parents) for file in files):
            raise ChangelogError(
                Kind.USAGE, f"{path}: there are no schemas", hint="`changelog schemas generate` writes them"
            )


def _against_live(contracts: Sequence[Contract], paths: Sequence[Path], arguments: argparse.Namespace) -> CheckReport:
    absent_path = next((path for path in arguments.path if not path.exists()), None)
    if absent_path is not None:
        raise ChangelogError(Kind.USAGE, f"{absent_path}: no such file", hint="name files, or folders of them")
    folder = next((path for path in paths if not path.is_file()), None)
    return live.report(config.load(arguments.config, os.environ), contracts, folder, Mode(arguments.mode))


def read_earlier(contracts: Sequence[Contract], paths: Sequence[Path], arguments: argparse.Namespace) -> Earlier:
    """Reads the earlier versions of the schemas from the source that `--against` names."""
    kind, _, argument = arguments.against.partition(":")
    if kind == GIT:
        return git.in_git(contracts, paths, argument)
    if kind == REGISTRY:
        return _in_registry(contracts, argument, arguments.config)
    return in_folder(contracts, Path(arguments.against))


def _in_registry(contracts: Sequence[Contract], url: str, file: Path) -> Earlier:
    options = {}
    if not url:
        settings = config.load(file, os.environ)
        refuse_other_envelope(settings, "`changelog schemas check --against registry:`")
        sink = settings.sink
        if not isinstance(sink, KafkaConfig) or sink.registry is None:
            raise ChangelogError(Kind.USAGE, f"{file}: no registry is configured", hint="give --against registry:URL")
        url, options = sink.registry, sink.registry_client
    with kafka_needed():
        from changelog.connectors.kafka.registry import Registry  # noqa: PLC0415
        from changelog.connectors.schema_files.registered import in_registry  # noqa: PLC0415
    with closing(Registry(url, options)) as registry:
        return in_registry(contracts, registry)
