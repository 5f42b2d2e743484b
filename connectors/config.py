"""The configuration: one TOML file, overridden by the environment, parsed once and handed down.

`load` reports every problem at once. Secrets come in by reference (`"env:NAME"`, `"file:PATH"`) and go into no
message and no representation.
"""

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import psycopg
from psycopg.conninfo import conninfo_to_dict
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationError,
)
from pydantic_core import ErrorDetails

from envelope.entity import RESERVED
from envelope.errors import ChangelogError, Kind
from schemas.compatibility import Mode

PREFIX = "CHANGELOG__"
"""What an overriding environment variable's name starts with; `__` parts the rest: CHANGELOG__SINK__PATH."""

TOPIC_KEYS = frozenset({"profile", "retention_days", "topic_settings"})
"""Keys of an entity that only a topic has."""

REGISTRY_KEYS = frozenset({"registry", "registry_client", "auto_register"})
"""Keys of a Kafka sink that only Avro needs."""

REFERENCE = re.compile(r"(env|file):(.+)", re.DOTALL)


def _entity_name(name: str) -> str:
    if name in RESERVED:
        raise ValueError(f"{name} is a reserved name")
    return name


def _listen(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise ValueError('should be "HOST:PORT", as in "127.0.0.1:9464"')
    return text


def _dsn(text: str) -> str:
    try:
        conninfo_to_dict(text)
    except psycopg.ProgrammingError:  # its message quotes the text, which may hold a password
        raise ValueError('should be a connection string, as in "postgresql://USER@HOST:5432/DATABASE"') from None
    return text


Text = Annotated[str, StringConstraints(min_length=1)]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]+$")]
EntityName = Annotated[Name, AfterValidator(_entity_name)]
SlotName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,63}$")]
Prefix = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9._-]{1,150}$")]
Columns = Annotated[tuple[Text, ...], Field(min_length=1)]
CommitSeconds = Annotated[float, Field(gt=0, le=60)]
CommitBytes = Annotated[int, Field(ge=1 << 16, le=1 << 30)]
CommitRows = Annotated[int, Field(ge=1, le=10_000_000)]
Mask = Literal["drop", "null", "sha256"]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=False)


class SourceConfig(_Section):
    """`[source]`: the database, and what this service keeps in it."""

    kind: Literal["postgres"]
    dsn: Annotated[Text, AfterValidator(_dsn)] = Field(repr=False)
    slot: SlotName | None = None
    publication: SlotName | None = None
    failover: bool = False
    snapshot_workers: int = Field(default=2, ge=1, le=32)
    snapshot_pages: int = Field(default=256, ge=1, le=1 << 16)
    query_timeout_seconds: float = Field(default=30, gt=0, le=3600)
    read_timeout_seconds: float = Field(default=300, gt=0, le=86_400)


class FilesConfig(_Section):
    """`[sink] kind = "files"`: a log of files in a folder. A commit closes at the first of its three bounds."""

    kind: Literal["files"] = "files"
    path: Path
    commit_seconds: CommitSeconds = 1.0
    commit_bytes: CommitBytes = 64 << 20
    commit_rows: CommitRows = 100_000


class KafkaConfig(_Section):
    """`[sink] kind = "kafka"`: topics of one prefix. `client` and `registry_client` go to these clients as they are."""

    kind: Literal["kafka"]
    bootstrap_servers: Text
    prefix: Prefix | None = None
    codec: Literal["json", "avro"] = "json"
    registry: Text | None = Field(default=None, repr=False)
    registry_client: dict[str, Any] = Field(default={}, repr=False)
    auto_register: bool = False
    client: dict[str, str] = Field(default={}, repr=False)
    replication_factor: int | None = Field(default=None, ge=1, le=100)
    create_topics: bool = True
    on_too_large: Literal["stop", "dead-letter"] = "stop"
    transaction_timeout_seconds: int = Field(default=60, ge=10, le=900)
    commit_seconds: CommitSeconds = 0.02
    commit_bytes: CommitBytes = 64 << 20
    commit_rows: CommitRows = 100_000


def _sink_kind(sink: Any) -> Any:
    return sink.get("kind", "files") if isinstance(sink, Mapping) else getattr(sink, "kind", "files")


SinkConfig = Annotated[
    Annotated[FilesConfig, Tag("files")] | Annotated[KafkaConfig, Tag("kafka")], Discriminator(_sink_kind)
]
"""`[sink]`: where the changelog goes."""


class TablesConfig(_Section):
    """`[tables]`: patterns over `schema.table`; every table that one includes and none excludes is an entity."""

    include: Columns
    exclude: tuple[Text, ...] = ()


class StampConfig(_Section):
    """`default = { … }`: what stands for a stamp that the application did not set."""

    api_version: str = Field(default="unknown", alias="apiVersion")
    service_name: str = Field(default="unknown", alias="serviceName")
    identifier: str = ""


class ProvenanceConfig(_Section):
    """`[provenance]`, or `[entities.X.provenance]` in its place for one entity."""

    missing: Literal["default", "warn", "stop"] = "default"
    default: StampConfig = StampConfig()


class SchemasConfig(_Section):
    """`[schemas]`, or `[entities.X.schemas]` in its place for one entity: what becomes of altered columns."""

    compatibility: Mode = Mode.FULL_TRANSITIVE
    on_incompatible: Literal["stop", "publish"] = "stop"
    on_restated: Literal["read", "ask"] = "read"


class DriftConfig(_Section):
    """`[drift]`: what is done about drift; `[entities.X.drift]` says otherwise for one entity."""

    republish_keys_max: int = Field(default=1000, ge=0, le=10_000_000)
    rebuild_ppm: float = Field(default=1000.0, ge=0, le=1_000_000)
    rebuild_columns: bool = True
    severe_ppm: float = Field(default=10_000.0, ge=0, le=1_000_000)
    on_schema_mismatch: Literal["stop", "rebuild", "ignore"] = "stop"


class EntityConfig(_Section):
    """`[entities.X]`: one entity; without `table` it refines the entity that `[tables]` makes under that name."""

    table: Text | None = None
    key: Columns | None = None
    partition_by: Columns | None = None
    partitions: int = Field(default=1, ge=1, le=10_000)
    columns: Columns = ("*",)
    exclude_columns: tuple[Text, ...] = ()
    where: Text | None = None
    mask: dict[str, Mask] = {}
    immutable: bool = False
    on_change_of_immutable: Literal["stop", "ignore"] = "stop"
    on_truncate: Literal["stop", "publish"] = "stop"
    on_unlogged: Literal["rebuild", "stop", "ignore"] = "rebuild"
    provenance: ProvenanceConfig | None = None
    schemas: SchemasConfig | None = None
    drift: DriftConfig | None = None
    profile: Literal["changelog", "aggressive", "history"] = "changelog"
    retention_days: int = Field(default=3, ge=1, le=36_500)
    topic_settings: dict[str, str] = {}


class MaskConfig(_Section):
    """`[mask]`: the secret of the `sha256` masks."""

    key: Annotated[str, StringConstraints(min_length=16)] = Field(repr=False)


class SignalsConfig(_Section):
    """`[signals]`: the secret that signals are signed with; without one, any role of the database may send them."""

    secret: Annotated[str, StringConstraints(min_length=16)] = Field(repr=False)


class NestedConfig(_Section):
    """`[views.X.nested.MEMBER]`: the rows of `entity` that belong to a row around them.

    `on` says which: for each of their columns, the column of that row which it equals.
    """

    entity: EntityName
    on: Annotated[dict[Text, Text], Field(min_length=1)]
    columns: Columns = ("*",)
    where: Text | None = None
    nested: dict[Text, "NestedConfig"] = {}


class ViewConfig(_Section):
    """`[views.X]`: documents for `spark_jobs/rebuild_view.py`, one a row of `entity`."""

    entity: EntityName
    columns: Columns = ("*",)
    where: Text | None = None
    nested: dict[Text, NestedConfig] = {}

    def entities(self) -> Iterator[str]:
        """All that its documents are made of, the outermost first."""
        parts: list[ViewConfig | NestedConfig] = [self]
        for part in parts:
            yield part.entity
            parts += part.nested.values()


class ServiceConfig(_Section):
    """`[service]`: where `/live`, `/ready` and `/metrics` are served."""

    listen: Annotated[str, AfterValidator(_listen)] = "127.0.0.1:9464"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; port 0 lets the system choose."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


class Config(_Section):
    """The whole file; frozen. `slot` and `publication` are named after the service unless given."""

    name: Name
    source: SourceConfig
    sink: SinkConfig
    tables: TablesConfig | None = None
    entities: dict[EntityName, EntityConfig] = {}
    provenance: ProvenanceConfig = ProvenanceConfig()
    schemas: SchemasConfig = SchemasConfig()
    mask: MaskConfig | None = None
    signals: SignalsConfig | None = None
    service: ServiceConfig = ServiceConfig()
    views: dict[Name, ViewConfig] = {}
    drift: DriftConfig = DriftConfig()

    def drift_of(self, entity: str) -> DriftConfig:
        """What `[entities.X.drift]` says, and `[drift]` where it says nothing."""
        own = self.entities[entity].drift if entity in self.entities else None
        return self.drift.model_copy(update=own.model_dump(exclude_unset=True)) if own else self.drift

    @property
    def slot(self) -> str:
        """The replication slot's name."""
        return self.source.slot or self.name.replace("-", "_")

    @property
    def publication(self) -> str:
        """The publication's name."""
        return self.source.publication or self.name.replace("-", "_")

    @property
    def hmac_key(self) -> bytes:
        """The secret of the `sha256` masks; empty where there is none."""
        return b"" if self.mask is None else self.mask.key.encode()

    @property
    def signals_secret(self) -> bytes | None:
        """What signals are signed with, None where they are not."""
        return None if self.signals is None else self.signals.secret.encode()

    @property
    def codec(self) -> str:
        """What the messages' values are: files hold JSON."""
        return self.sink.codec if isinstance(self.sink, KafkaConfig) else "json"

    @property
    def prefix(self) -> str:
        """What the names of all topics begin with."""
        return (self.sink.prefix if isinstance(self.sink, KafkaConfig) else None) or self.name


Loc = tuple[str | int, ...]
NOWHERE: Loc = ()
_KINDS = (("files",), ("kafka",))


def load(path: Path, environ: Mapping[str, str]) -> Config:
    """The configuration in `path`, with what `environ` overrides and refers to.

    Relative paths in the file are relative to its folder. Raises one ChangelogError(USAGE) that lists every
    problem, a line each: the path in the file, what is wrong, and what would be right.
    """
    tree = _read(path)
    problems: dict[Loc, str] = {}
    origins = _override(tree, environ, problems)
    _dereference(tree, (), path.parent, environ, problems)
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            problems.setdefault(_place(details), _remedy(details))
    else:
        problems = {**dict(_cross_check(config)), **problems}
    if problems:
        raise_problems(str(path), [f"{_spell(loc, origins)}: {text}" for loc, text in problems.items()])
    if isinstance(config.sink, FilesConfig):
        sink = config.sink.model_copy(update={"path": path.parent / config.sink.path})
        return config.model_copy(update={"sink": sink})
    return config


def raise_problems(where: str, problems: list[str]) -> None:
    """Raises the one USAGE error that lists `problems`, a line each; returns when there are none."""
    if len(problems) == 1:
        raise ChangelogError(Kind.USAGE, f"{where}: {problems[0]}")
    if problems:
        raise ChangelogError(Kind.USAGE, "\n  ".join([f"{where}: {len(problems)} problems", *problems]))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        hint = "write one with `changelog init --dsn DSN`, or name it with --config"
        raise ChangelogError(Kind.USAGE, f"{path}: no such file", hint=hint) from error
    except OSError as error:
        raise ChangelogError(Kind.USAGE, f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ChangelogError(Kind.USAGE, f"{path}: is not UTF-8 at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise ChangelogError(Kind.USAGE, f"{path}: is not TOML: {error}", hint="see https://toml.io") from error


def _override(tree: dict[str, Any], environ: Mapping[str, str], problems: dict[Loc, str]) -> dict[Loc, str]:
    """Puts the environment's values into the tree; gives which variable each came from."""
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
    """The key that an environment name's segment, upper case and without hyphens, stands for."""
    plain = segment.lower()
    candidates = {key.lower().replace("-", "_"): key for key in (*_known(loc), *node)}
    return candidates.get(plain, plain)


def _parse_value(text: str) -> Any:
    if text[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except ValueError:
            pass  # then it is a text, which the field's own check will judge
    return text


def _dereference(node: Any, loc: Loc, folder: Path, environ: Mapping[str, str], problems: dict[Loc, str]) -> None:
    """Replaces every `env:NAME` and `file:PATH` in the tree by what it refers to."""
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
    """What `env:NAME` or `file:PATH` on a command line refers to. Raises ChangelogError (USAGE)."""
    match = REFERENCE.fullmatch(reference)
    if match is None:
        raise ChangelogError(Kind.USAGE, "a secret is given by reference", hint="env:NAME, or file:PATH")
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
        yield ("entities",), 'nothing is to be published; add [tables] include = ["public.*"], or [entities.X]'
    for name, entity in config.entities.items():
        if entity.table is None and config.tables is None:
            yield ("entities", name, "table"), 'is missing; add table = "SCHEMA.TABLE"'
        if "sha256" in entity.mask.values() and config.mask is None:
            yield ("entities", name, "mask"), 'sha256 needs a secret; add [mask] key = "env:NAME"'
        for key in sorted(TOPIC_KEYS & entity.model_fields_set):
            if not isinstance(config.sink, KafkaConfig):
                yield ("entities", name, key), "is of a topic, and the sink is files; leave it out"
            elif key == "retention_days" and entity.profile != "history":
                yield ("entities", name, key), 'is kept by profile = "history" alone; add that, or leave it out'
    if isinstance(config.sink, KafkaConfig):
        yield from _check_codec(config.sink)


def _check_codec(sink: KafkaConfig) -> Iterator[tuple[Loc, str]]:
    if sink.codec == "avro" and sink.registry is None:
        yield ("sink", "registry"), 'is missing, and codec = "avro" needs one; add registry = "http://HOST:8081"'
    if sink.codec == "json":
        for key in sorted(REGISTRY_KEYS & sink.model_fields_set):
            yield ("sink", key), 'is for codec = "avro" alone; set that, or leave it out'


def _place(details: ErrorDetails) -> Loc:
    """Where in the file an error is: its location without what pydantic puts in to say which key or kind it means."""
    loc = tuple(part for part in details["loc"] if part != "[key]")
    if details["type"] == "union_tag_invalid":
        return (*loc, "kind")
    return loc[:1] + loc[2:] if loc[:1] == ("sink",) and loc[1:2] in _KINDS else loc


def _remedy(details: ErrorDetails) -> str:
    """What is wrong and what would be right; never the value itself, which may be a secret."""
    match details["type"]:
        case "missing":
            return "is missing; add it"
        case "union_tag_invalid":
            return f"should be {details['ctx']['expected_tags'].replace(', ', ' or ')}"
        case "extra_forbidden":
            return _unknown(details["loc"])
        case "string_pattern_mismatch":
            allowed = "a-z, 0-9 and _" if "{1,63}" in details["ctx"]["pattern"] else "a-z, 0-9, - and _"
            return f"should be made of {allowed}"
        case "string_too_short":
            return f"should have {details['ctx']['min_length']} characters or more"
        case "too_short":
            return "should not be empty"
        case "value_error":
            return str(details["ctx"]["error"])
        case "model_type" | "model_attributes_type" | "dict_type":
            return "should be a table"
        case "tuple_type":
            return "should be a list"
        case _:
            return details["msg"].removeprefix("Input ").replace(", unable to parse string as an integer", "")


def _unknown(loc: Loc) -> str:
    known = _known(loc[:-1])
    close = difflib.get_close_matches(str(loc[-1]), known, n=1)
    return f"is not known; did you mean {close[0]}?" if close else f"is not known; known here: {', '.join(known)}"


def _known(loc: Loc) -> list[str]:
    """The keys that the table at `loc` may have; none when any may."""
    found: list[Any] = [Config]
    for part in loc:
        found = [each for annotation in found for each in _below(annotation, part)]
    return list(dict.fromkeys(str(key) for annotation in found for key in _fields(annotation)))


def _below(annotation: Any, part: str | int) -> list[Any]:
    """What may stand under the key `part` of a table of this type; a sink's kind, as a part, chooses that kind."""
    fields = _fields(annotation)
    if fields:
        if (part,) == get_args(fields.get("kind")):
            return [annotation]
        return _alternatives(fields[part]) if part in fields else []
    return list(get_args(annotation)[-1:])


def _fields(annotation: Any) -> dict[str | int, Any]:
    """The types of a section's keys; none of what is no section."""
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return {}
    return {field.alias or name: field.annotation for name, field in annotation.model_fields.items()}


def _alternatives(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Annotated:
        return _alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [each for part in get_args(annotation) for each in _alternatives(part)]
    return [annotation]


def _spell(loc: Loc, origins: Mapping[Loc, str]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")
    for length in range(len(loc), 0, -1):
        if loc[:length] in origins:
            return f"{text} (from {origins[loc[:length]]})"
    return text
