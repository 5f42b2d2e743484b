"""Checks that a real schema registry and our own code give the same verdict: whether a changed schema is compatible.

The schemas and their changes are random. All modes of compatibility are checked. The registry is Apicurio, which uses
Java's `SchemaCompatibility`. Apicurio differs from our code in four ways:

- If a record contains a map whose values contain the same record, Apicurio's stack overflows. The test leaves such
  schemas out.
- Apicurio answers 422 if one field of the reader matches several fields of the writer. We answer AMBIGUOUS.
- Apicurio makes no new version of a schema that it already has. So a history contains each schema once.
- Before a client registers a schema, it can ask whether the schema is compatible. For this question, the URL decides
  whether Apicurio compares the schema with all versions or only with the last one. For the registration, the mode
  decides.
"""

import json
import urllib.error
import urllib.request
from itertools import count

from hypothesis import HealthCheck, assume, given, settings

from changelog.schemas.avro import Schema
from changelog.schemas.compatibility import Mode, Problem, Rule, problems
from changelog.schemas.document import Document, Type
from tests.patience import PATIENCE_S
from tests.servers.registry import Registry
from tests.unit.schemas.evolutions import ROUNDS, evolutions, histories

SUBJECTS = count()


@settings(max_examples=ROUNDS or 15, deadline=None, suppress_health_check=list(HealthCheck))
@given(evolution=evolutions())
def test_a_registry_gives_the_same_verdict_on_one_change(registry: Registry, evolution: tuple[Schema, Schema]) -> None:
    old, new = evolution
    subject = register(registry, old)
    for mode in (Mode.BACKWARD, Mode.FORWARD):
        check_agreement(answer(registry, subject, new, mode), problems(new, [("old", old)], mode))


@settings(max_examples=max(ROUNDS // 4, 4), deadline=None, suppress_health_check=list(HealthCheck))
@given(versions=histories())
def test_a_registry_gives_the_same_verdict_on_a_history(registry: Registry, versions: list[Schema]) -> None:
    assume(len({json.dumps(version) for version in versions}) == len(versions))
    *old, new = versions
    subject = register(registry, *old)
    for mode in Mode:
        check_agreement(
            answer(registry, subject, new, mode),
            problems(new, [(str(n), version) for n, version in enumerate(old)], mode),
        )


def check_agreement(verdict: bool | None, our_problems: list[Problem]) -> None:
    """Checks that the registry's verdict agrees with the problems that we find. The registry applies only Avro's own
    rules. So this function ignores each problem that only our own, stricter rules forbid.
    """
    not_strict = [problem for problem in our_problems if not problem.strict]
    if verdict is None:
        assert Rule.AMBIGUOUS in [problem.rule for problem in not_strict]
    else:
        assert verdict is (not not_strict), not_strict


def register(registry: Registry, *versions: Schema) -> str:
    """Registers these versions under a new subject. Returns the subject."""
    assume(not any(is_in_map_of_itself(Document(schema).root, ()) for schema in versions))
    subject = f"verdict-{next(SUBJECTS)}"
    for schema in versions:
        _call(registry, "POST", f"/subjects/{subject}/versions", {"schema": json.dumps(schema)})
        _call(registry, "PUT", f"/config/{subject}", {"compatibility": "NONE"})
    return subject


def is_in_map_of_itself(type_: Type, outer_names: tuple[str, ...]) -> bool:
    """Returns whether the values of a map in a record contain the same record.

    `outer_names` has the names of the records around the type, and an empty name for each map around it.
    """
    match type_.kind:
        case "record" if type_.name in outer_names:
            return "" in outer_names[outer_names.index(type_.name) :]
        case "record":
            return any(is_in_map_of_itself(field.type, (*outer_names, type_.name)) for field in type_.fields())
        case "map":
            return is_in_map_of_itself(type_.values(), (*outer_names, ""))
        case "array":
            return is_in_map_of_itself(type_.items(), outer_names)
    return any(is_in_map_of_itself(branch, outer_names) for branch in type_.of_union())


def answer(registry: Registry, subject: str, schema: Schema, mode: Mode) -> bool | None:
    """Returns whether the registry would accept the schema as the subject's next version, or None if it cannot say."""
    _call(registry, "PUT", f"/config/{subject}", {"compatibility": mode.value})
    path = f"/compatibility/subjects/{subject}/versions" + ("" if mode.transitive else "/latest")
    try:
        result = _call(registry, "POST", path, {"schema": json.dumps(schema)})
    except urllib.error.HTTPError as error:
        if error.code == 422:
            return None
        raise
    verdict = result["is_compatible"]
    assert isinstance(verdict, bool)
    return verdict


def _call(registry: Registry, method: str, path: str, body: object) -> dict[str, object]:
    request = urllib.request.Request(
        registry.url + path,
        json.dumps(body).encode(),
        {"Content-Type": "application/vnd.schemaregistry.v1+json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        result: dict[str, object] = json.load(response)
        return result
