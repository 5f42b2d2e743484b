"""Reads the configuration: the file, the environment variables that override it, and the secrets that it refers to."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from changelog.connectors.config.debezium import DebeziumConfig, source_problems
from changelog.connectors.config.entities import EntityConfig
from changelog.connectors.config.files import FilesConfig
from changelog.connectors.config.kafka import OWN_ENVELOPE, TOPIC_KEYS, KafkaConfig, sink_problems
from changelog.connectors.config.model import Config
from changelog.connectors.config.mysql import MysqlConfig
from changelog.connectors.config.remedies import Loc, known_keys, place, remedy
from changelog.connectors.config.views import served_problems, streams_problems, totals_problems
from changelog.connectors.config.web import web_problems
from changelog.envelope.errors import ChangelogError, Kind

PREFIX = "CHANGELOG__"
"""The prefix of environment variables that override a setting. `__` separates the keys: CHANGELOG__SINK__PATH is
`path` in `[sink]`."""

REFERENCE = re.compile(r"(env|file):(.+)", re.DOTALL)

NOWHERE: Loc = ()


def load(path: Path, environ: Mapping[str, str]) -> Config:
    """Returns the configuration in the file `path`.

    `environ` has the environment variables: some override settings, and the file may refer to others for secrets.
    Relative paths in the file are relative to its folder. If there are problems, raises one ChangelogError (USAGE) with
    a line for each problem: the setting, the problem, and the correction.
    """
    tree = _read(path)
    problems: dict[Loc, str] = {}
    origins = _override(tree, environ, problems)
    _dereference(tree, (), path.parent, environ, problems)
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            problems.setdefault(place(details), remedy(details))
    else:
        problems = {**dict(_cross_check(config)), **problems}
    if problems:
        raise_problems(str(path), [f"{_spell(loc, origins)}: {text}" for loc, text in problems.items()])
    return _beside(path.parent, config)


def _beside(folder: Path, config: Config) -> Config:
    """Returns the configuration with its relative paths resolved: they are relative to the folder of the file."""
    source, sink = config.source, config.sink
    if isinstance(sink, FilesConfig):
        sink = sink.model_copy(update={"path": folder / sink.path})
    if isinstance(source, MysqlConfig) and source.fence_folder is not None:
        # This path is made absolute, because Spark's executors have other working directories.
        source = source.model_copy(update={"fence_folder": (folder / source.fence_folder).absolute()})
    if isinstance(source, DebeziumConfig) and source.jars is not None:
        source = source.model_copy(update={"jars": folder / source.jars})
    state = config.state and config.state.model_copy(update={"path": folder / config.state.path})
    web = {"console": config.console.beside(folder), "serve": config.serve.beside(folder)}
    return config.model_copy(update={"source": source, "sink": sink, "state": state, **web})


def raise_problems(where: str, problems: list[str]) -> None:
    """Raises one ChangelogError (USAGE) with a line for each of `problems`; raises nothing if there are none."""
    if len(problems) == 1:
        raise ChangelogError(Kind.USAGE, f"{where}: {problems[0]}")
    if problems:
        raise ChangelogError(Kind.USAGE, "\n  ".join([f"{where}: {len(problems)} problems", *problems]))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        hint = "write a configuration with `changelog init --dsn DSN`, or name its file with --config"
        raise ChangelogError(Kind.USAGE, f"{path}: no such file", hint=hint) from error
    except OSError as error:
        raise ChangelogError(Kind.USAGE, f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ChangelogError(Kind.USAGE, f"{path}: is not UTF-8 at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise ChangelogError(Kind.USAGE, f"{path}: is not TOML: {error}", hint="see https://toml.io") from error


def _override(tree: dict[str, Any], environ: Mapping[str, str], problems: dict[Loc, str]) -> dict[Loc, str]:
    """Overrides settings in `tree`, the content of the file, with the values of environment variables.

    Returns the places of these settings, each with the name of its variable.
    """
    origins: dict[Loc, str] = {}
    for variable in sorted(name for name in environ if name.startswith(PREFIX)):
        node, loc = tree, NOWHERE
        *tables, last = variable.removeprefix(PREFIX).split("__")
        for segment in tables:
            loc = (*loc, _spelling(segment, node, loc))
            child = node.setdefault(str(loc[-1]), {})
            if not isinstance(child, dict):
                problems[loc] = f"is not a table, so {variable} cannot set anything in it; unset the variable"
                break
            node = child
        else:
            loc = (*loc, _spelling(last, node, loc))
            node[str(loc[-1])] = _parse_value(environ[variable])
            origins[loc] = variable
    return origins


def _spelling(segment: str, node: Mapping[str, Any], loc: Loc) -> str:
    """Returns the key that a segment of a variable's name means, spelt as in the file.

    The segment is in upper case, and has underscores in place of hyphens.
    """
    plain = segment.lower()
    candidates = {key.lower().replace("-", "_"): key for key in (*known_keys(loc), *node)}
    return candidates.get(plain, plain)


def _parse_value(text: str) -> Any:
    if text[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except ValueError:
            pass  # it is not JSON, so it stays a text, which the validation accepts or refuses
    return text


def _dereference(node: Any, loc: Loc, folder: Path, environ: Mapping[str, str], problems: dict[Loc, str]) -> None:
    """Replaces every `env:NAME` and `file:PATH` below `node` by the variable's value, or the content of that file."""
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in list(pairs):
        match = REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            _dereference(value, (*loc, key), folder, environ, problems)
            continue
        try:
            node[key] = _secret(match[1], match[2], folder, environ)
        except LookupError as error:
            problems[(*loc, key)] = str(error.args[0])


def secret_of(reference: str, folder: Path, environ: Mapping[str, str]) -> str:
    """Returns the secret that a command line refers to by `env:NAME` or `file:PATH`.

    Raises ChangelogError (USAGE) if the reference has another form, or if there is no such variable or readable file.
    """
    match = REFERENCE.fullmatch(reference)
    if match is None:
        raise ChangelogError(Kind.USAGE, "a secret must be given by reference", hint="write env:NAME or file:PATH")
    try:
        return _secret(match[1], match[2], folder, environ)
    except LookupError as error:
        raise ChangelogError(Kind.USAGE, str(error.args[0])) from error


def _secret(kind: str, name: str, folder: Path, environ: Mapping[str, str]) -> str:
    if kind == "env":
        if name not in environ:
            raise LookupError(f"the environment has no {name}; set it")
        return environ[name]
    try:
        return (folder / name).read_text("utf-8").removesuffix("\n")
    except OSError as error:
        raise LookupError(f"{folder / name} cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise LookupError(f"{folder / name} is not UTF-8") from error


def _cross_check(config: Config) -> Iterator[tuple[Loc, str]]:
    if config.tables is None and not config.entities:
        include = f'include = ["{config.source.home or "SCHEMA"}.*"]'
        yield ("entities",), f"no table is to be published; add [tables] {include}, or [entities.X]"
    for name, entity in config.entities.items():
        yield from ((("entities", name, key), text) for key, text in _entity_problems(config, entity))
    if isinstance(config.source, DebeziumConfig):
        yield from ((("source", *keys), text) for keys, text in source_problems(config.source))
    if config.state is not None and config.envelope != OWN_ENVELOPE:
        text = f'cannot be restored from messages of envelope = "{config.envelope}"; leave [state] out'
        yield ("state",), text
    if isinstance(config.sink, KafkaConfig):
        yield from ((("sink", key), text) for key, text in sink_problems(config.sink))
    elif "streams" in config.serve.model_fields_set:
        yield ("serve", "streams"), "applies only to topics, and the sink is files; leave this section out"
    yield from ((("console", key), text) for key, text in web_problems(config.console))
    yield from ((("serve", key), text) for key, text in web_problems(config.serve))
    yield from ((("serve", "streams", key), text) for key, text in streams_problems(config.serve))
    yield from ((("views", name, "serve"), text) for name, text in served_problems(config.views))
    yield from ((("views", *keys), text) for keys, text in totals_problems(config.views))


def _entity_problems(config: Config, entity: EntityConfig) -> Iterator[tuple[str, str]]:
    """Yields each key of an entity that does not fit the other settings, with a text that says why, and what to do."""
    if entity.table is None and config.tables is None:
        yield "table", 'is missing; add table = "SCHEMA.TABLE"'
    if "sha256" in entity.mask.values() and config.mask is None:
        yield "mask", 'sha256 needs a secret; add [mask] key = "env:NAME"'
    if entity.types and not isinstance(config.source, DebeziumConfig):
        text = 'applies only to [source] kind = "debezium"; leave this key out'
        yield "types", text
    for key in sorted(TOPIC_KEYS & entity.model_fields_set):
        if not isinstance(config.sink, KafkaConfig):
            yield key, "applies only to topics, and the sink is files; leave this key out"
        elif key == "retention_days" and entity.profile != "history":
            text = 'applies only to profile = "history"; set that profile, or leave this key out'
            yield key, text


def _spell(loc: Loc, origins: Mapping[Loc, str]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")
    for length in range(len(loc), 0, -1):
        if loc[:length] in origins:
            return f"{text} (from {origins[loc[:length]]})"
    return text
