"""Writes two reference pages: one for the commands and one for the Spark jobs. They are made from the parsers of the
command lines, so that no option is missing.

`python docs/generated.py` writes the pages. With `--check` it writes nothing, and exits with 1 if a page would change.
"""

import argparse
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # this checkout, installed or not

from changelog.connectors import cli
from changelog.spark_jobs.runner import job

REFERENCE = Path(__file__).parent / "reference"
JOBS = ("archive", "derive_deltas", "rebuild_view", "maintain_view", "blame", "detect_drift")
COMMON = frozenset({"help", "config", "verbose", "dry_run", "metrics"})
"""Options that every command or every job has. A page lists them once, at its top."""

COMMANDS_HEAD = """# Commands

This page is generated from the program: `changelog COMMAND --help` says the same. Every command also takes these
options:

| option | does |
|---|---|
| `-c FILE`, `--config FILE` | names the configuration; without it, `changelog.toml` in this folder |
| `--verbose` | logs more, and shows the traceback of an error |
| `-h`, `--help` | prints the command's options |

`changelog --version` prints the version, and `changelog --completion bash` (or `zsh`, `fish`) prints a completion
script for the shell: see [Run the service](../how-to/run.md#shell-completion).

## Exit codes

| code | means |
|---|---|
| 0 | the command succeeded, and found nothing to report |
| 1 | the command found something: a failed check, a difference, a schema that breaks readers |
| 2 | the command line or the configuration is wrong |
| 3 | the command failed; the last line of its output says why |
| 130 | somebody ended the command with Ctrl-C |
| 141 | the program that read the command's output, for example `head`, ended |
| 143 | `changelog run` got a second SIGTERM while it was stopping |

An error is one line on standard error. The line says what is wrong, where, and what to do.
"""

JOBS_HEAD = """# Spark jobs

This page is generated from the jobs: `spark-submit spark_jobs/NAME.py --help` says the same.
[Run jobs on Spark](../how-to/spark.md) says how to start them. Every job also takes these options:

| option | does |
|---|---|
| `--config FILE` | names the service's configuration; without it, `changelog.toml` in this folder |
| `--dry-run` | prints what would be read and written, and does nothing |
| `--metrics FILE` | writes the figures of the summary as Prometheus text, for node_exporter's textfile collector |
| `--verbose` | shows Spark's log, and the traceback of an error |

The last line of a job's output is a JSON object with the job's figures and a `verdict`. The exit code says the same:

| code | verdict |
|---|---|
| 0 | `done`, `planned` (a dry run), `clean` |
| 1 | `found`, `drift` |
| 2 | `failed`: the command line or the configuration is wrong |
| 3 | `failed`; the error says why |
| 4 | `severe` drift |
| 5 | `not caught up` or `refused`: nothing was compared |
"""


def main(arguments: list[str]) -> int:
    """Writes the pages, or with `--check` only compares them. Returns the exit code."""
    pages = {REFERENCE / "commands.md": commands_page(), REFERENCE / "jobs.md": jobs_page()}
    outdated = [path for path, text in pages.items() if not path.exists() or path.read_text("utf-8") != text]
    if "--check" in arguments:
        for path in outdated:
            print(f"{path.relative_to(Path.cwd())}: out of date; run: python docs/generated.py", file=sys.stderr)
        return 1 if outdated else 0
    for path in outdated:
        path.write_text(pages[path], "utf-8")
    return 0


def commands_page() -> str:
    """Returns the page of `changelog` and its commands."""
    parts = [COMMANDS_HEAD]
    for name, summary in cli.COMMANDS.items():
        command = importlib.import_module(f"changelog.connectors.commands.{name}")
        parser = command_parser(cli.parser_of({name: command}), name)
        parts.append(f"## `changelog {name}`\n\n{sentence(summary)}\n")
        verbs = list(subparsers(parser))
        if verbs:
            for verb, verb_parser in verbs:
                parts.append(f"### `changelog {name} {verb}`\n\n{described(verb_parser)}")
                parts.append(options(verb_parser))
        else:
            parts.append(options(parser))
    return "\n".join(part for part in parts if part)


def jobs_page() -> str:
    """Returns the page of the Spark jobs."""
    parts = [JOBS_HEAD]
    for name in JOBS:
        definition = importlib.import_module(f"changelog.spark_jobs.{name}").JOB
        parts.append(f"## `{name}.py`\n\n{summary(definition.description)}\n")
        parts.append(options(job._parser(definition)))
    return "\n".join(part for part in parts if part)


def command_parser(parser: argparse.ArgumentParser, name: str) -> argparse.ArgumentParser:
    """Returns the parser of one command."""
    return dict(subparsers(parser))[name]


def subparsers(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yields the name and the parser of each command below `parser`."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def options(parser: argparse.ArgumentParser) -> str:
    """Returns a table of a command's own arguments, without the common ones; an empty text if it has none."""
    rows = [row(action) for action in parser._actions if action.dest not in COMMON and action.help != argparse.SUPPRESS]
    return "\n".join(["| argument | does |", "|---|---|", *rows, ""]) if rows else ""


def row(action: argparse.Action) -> str:
    """Returns the row that describes one argument in the table."""
    value = shown_value(action)
    names = [f"{name} {value}".strip() for name in action.option_strings] or [value]
    text = (action.help or "") % {**vars(action), "prog": "changelog"}
    if action.required and action.option_strings:
        text += " (required)"
    spelt = ", ".join(f"`{name}`" for name in names)
    return f"| {spelt} | {text} |".replace("\\", "\\\\") if "|" not in spelt + text else _escaped(spelt, text)


def _escaped(spelt: str, text: str) -> str:
    return "| {} | {} |".format(spelt.replace("|", "\\|"), text.replace("|", "\\|"))


def shown_value(action: argparse.Action) -> str:
    """Returns how a usage line shows the value of an argument: as its metavar or its choices. A value that may be left
    out is in brackets.
    """
    if action.nargs == 0:
        return ""
    names = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    name = names if isinstance(names, str) else " ".join(names)
    match action.nargs:
        case "?":
            return f"[{name}]"
        case "*":
            return f"[{name} ...]"
        case "+":
            return f"{name} [{name} ...]"
        case int(count):
            return " ".join([name] * count)
    return name


def described(parser: argparse.ArgumentParser) -> str:
    """Returns what a verb does, as a sentence. A verb is the word after a command's name, such as `serve` in `changelog
    views serve`.
    """
    return f"{sentence(parser.description)}\n" if parser.description else ""


def summary(description: str) -> str:
    """Returns the description of a job, without its first part: that part says how to start the job."""
    return sentence(description.strip().partition("`: ")[2])


def sentence(text: str) -> str:
    """Returns the text with a capital letter at its beginning and a full stop at its end."""
    return text[0].upper() + text[1:].rstrip(".") + "."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
