"""Implements the command line `changelog`. Finds the command, runs it, and turns an error into a line and an exit code.

Exit codes: 0 if the command did what it should and found nothing wrong, 1 if it found something wrong, 2 for bad usage
or a bad configuration, 3 if it failed, 130 after Ctrl-C, and 141 if the program that reads the output has ended.
"""

import argparse
import difflib
import gc
import importlib
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import NoReturn

from changelog.connectors.commands import Command, add_common_arguments
from changelog.connectors.extras import installation, own_version
from changelog.connectors.terminal import say

COMMANDS = {
    "demo": "run a demonstration on this machine, with a database of its own (extra `embedded` or `mysql`)",
    "init": "write a configuration and schema files from a live database, or print SQL that an administrator runs",
    "check": "test every precondition of the service and print a fix for each problem",
    "run": "run the service: read the tables, then stream changes until stopped",
    "status": "show the lag, the log that the slot retains, tables being read, repairs, and messages per entity",
    "tail": "show changes as they are published",
    "history": "show all changes of one key of an entity, or the row that the key had at a moment",
    "blame": "show who set each attribute of one key of an entity",
    "who": "show everything that one service, request or batch run wrote",
    "console": "serve pages that show what happened to a row, and who did it (extra `console`)",
    "views": "serve the present state of each row over HTTP (extra `console`)",
    "schemas": "work with the schemas of published tables: in files, in the registry, and in migrations",
    "republish": "publish some or all keys of an entity again from its table, without disturbing the order of changes",
    "rebuild": "publish an entity again from its table, and publish a delete for each key that the table no longer has",
    "repartition": "give an entity another number of partitions, in a new topic on Kafka",
    "signal": "pause or resume the reading of tables, or cancel repairs",
    "accept": "let the service continue past a change at which it stopped",
    "debezium": "fetch the jars with which a Python program runs a connector of Debezium",
    "drop": "remove what the service created in the database and on Kafka",
}
"""The summary of each command. The code of a command is the module of the same name in `changelog.connectors.commands`.
The module is imported only if the command line names the command."""

SERVICE = "run"
"""The command that runs the service. The service writes a log to standard error."""

FAILED = 3
INTERRUPTED = 130
OUTPUT_GONE = 141


class _Parser(argparse.ArgumentParser):
    sub_parser: "argparse.ArgumentParser | None" = None
    """The parser of the command that the command line names. Its options are suggested if an option is misspelt."""

    def error(self, message: str) -> NoReturn:
        """Prints a usage error as one line, like every other error, and exits with 2."""
        self.exit(2, f"{self.prog}: {message}{self._meant(message)}; see `{self.prog} --help`\n")

    def _meant(self, message: str) -> str:
        """Returns a suggestion that is added to the error `message` if a command or an option is misspelt.

        The suggestion is empty if no command or option has a similar name.
        """
        names: Sequence[str]
        if choice := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            names = re.findall(r"[\w-]+", choice[2])
        elif choice := re.search(r"unrecognized arguments: (-\S*)", message):
            names = [*self._option_string_actions, *(self.sub_parser._option_string_actions if self.sub_parser else ())]
        else:
            return ""
        close = difflib.get_close_matches(choice[1], names, n=1, cutoff=0.7)
        return f"; did you mean {close[0]}?" if close else ""


def entry_point() -> int:
    """Runs the command line of this process, and returns the exit code.

    Afterwards, this process cannot import pandas.
    """
    leave_pandas_out()
    return main()


def leave_pandas_out() -> None:
    """Makes imports of pandas fail in this process. No command needs pandas, but Arrow would import it.

    Arrow does so to find out whether a value is an object of pandas. The import takes 0.2 s of CPU and 37 MiB.
    """
    sys.meta_path.insert(0, _WithoutPandas())


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line, by default that of this process, and returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = next((word for word in words if word in COMMANDS), None)
    try:
        command = _load(name) if name else None
    except KeyboardInterrupt:
        return INTERRUPTED
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        if missing == "changelog":
            raise
        needs = f"`changelog {name}` needs {missing}, which is not installed"
        print(f"changelog: {needs}; {installation()}", file=sys.stderr)
        return 2
    parser = parser_of({name: command} if name and command else {})
    arguments = parser.parse_args(words)
    if command is None:
        parser.print_help()
        return 2
    return execute(command, arguments)


class _WithoutPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:  # noqa: ARG002
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is left out", name=fullname)


def _load(name: str) -> Command:
    """Imports the module of a command.

    An import makes many objects, nearly all of which stay in use. So the garbage collector is off during the import,
    and never looks at these objects later. Otherwise, a short command would spend a quarter of its time in the
    collector.
    """
    module = f"changelog.connectors.commands.{name}"
    is_new, collects = module not in sys.modules, gc.isenabled()
    gc.disable()
    try:
        command: Command = importlib.import_module(module)
    finally:
        if collects:
            gc.enable()
    if is_new:
        gc.freeze()
    return command


def parser_of(loaded: Mapping[str, Command]) -> argparse.ArgumentParser:
    """Returns the parser of the command line. It has all commands, but only those in `loaded` have their arguments.

    `loaded` maps the names of commands to their modules.
    """
    parser = _Parser(prog="changelog", description="Publishes a database's commit log as a changelog.")
    parser.add_argument("--version", action="version", version=f"changelog {own_version()}")
    parser.add_argument(
        "--completion", action=_Completion, metavar="SHELL", help="print a completion script for bash, zsh or fish"
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for name, summary in COMMANDS.items():
        sub = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        add_common_arguments(sub)
        sub.set_defaults(config=Path("changelog.toml"), verbose=False)
        if name in loaded:
            loaded[name].add_arguments(sub)
            parser.sub_parser = sub
    return parser


class _Completion(argparse.Action):
    """Prints the completion script for a shell, and ends the process."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        _namespace: argparse.Namespace,
        value: str | Sequence[object] | None,
        _option: str | None = None,
    ) -> None:
        from changelog.connectors import completion  # noqa: PLC0415 - nothing else should wait for this import

        if value not in completion.SHELLS:
            parser.error(
                f"argument --completion: there is no script for {value}; choose from {', '.join(completion.SHELLS)}"
            )
        print(completion.script(parser_of(_loadable()), str(value)), end="")
        parser.exit()


def _loadable() -> dict[str, Command]:
    """Loads all commands, except those that need a package that is not installed."""
    loaded = {}
    for name in COMMANDS:
        with suppress(ModuleNotFoundError):
            loaded[name] = _load(name)
    return loaded


def execute(command: Command, arguments: argparse.Namespace) -> int:
    """Runs a command, turns an error into one line on stderr, and returns the exit code."""
    from changelog.connectors import logs  # noqa: PLC0415 - help and completion should not wait for these imports
    from changelog.envelope.errors import EXIT_CODES, ChangelogError  # noqa: PLC0415

    logs.configure(sys.stderr, verbose=arguments.verbose)
    try:
        return command.execute(arguments)
    except ChangelogError as error:
        _report(error, str(error), arguments)
        return EXIT_CODES.get(error.kind, FAILED)
    except BrokenPipeError:  # the program that reads our output, for example `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OUTPUT_GONE
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:  # for example, we lack the right to read a file
        where = f"{error.filename}: " if error.filename else ""
        _report(error, f"{where}{error.strerror or type(error).__name__}", arguments)
        return FAILED
    except Exception as error:  # noqa: BLE001 - a bug of ours; its message is not shown, because it may quote a row
        text = f"internal error ({type(error).__name__}); repeat with --verbose and report the traceback"
        _report(error, text, arguments)
        return FAILED


def _report(error: BaseException, text: str, arguments: argparse.Namespace) -> None:
    """Prints an error as one line on stderr.

    If the command is `run` and its stderr is not a terminal, the error becomes an event of the service's log, so that a
    collector of JSON lines finds it.
    """
    if arguments.command == SERVICE and not sys.stderr.isatty():
        import structlog  # noqa: PLC0415 - loaded late like our own packages above

        log = structlog.get_logger("service")
        log.error("service failed", error=text, **({"exc_info": error} if arguments.verbose else {}))
        return
    if arguments.verbose:
        traceback.print_exception(error, file=sys.stderr)
    say(f"changelog: {text}", file=sys.stderr)
