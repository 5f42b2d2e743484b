"""Verdicts against a real registry's, over random changes of random schemas, in every mode it has.

Apicurio asks Java's `SchemaCompatibility`. Where it has ways of its own:

- a record in a map of itself overflows its stack when it is registered, so such schemas are left out;
- where one field of the reader's stands for several of the writer's it cannot say (422), where we say AMBIGUOUS;
- a schema that it has already is no new version, so a history has each once;
- it asks all versions or the last one as its address says, whatever the mode; only what it registers goes by the mode.
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
def test_a_registry_says_the_same_of_one_change(registry: Registry, evolution: tuple[Schema, Schema]) -> None:
    old, new = evolution
    subject = registered(registry, old)
    for mode in (Mode.BACKWARD, Mode.FORWARD):
        agree(answer(registry, subject, new, mode), problems(new, [("old", old)], mode))


@settings(max_examples=max(ROUNDS // 4, 4), deadline=None, suppress_health_check=list(HealthCheck))
@given(versions=histories())
def test_a_registry_says_the_same_of_a_history(registry: Registry, versions: list[Schema]) -> None:
    assume(len({json.dumps(each) for each in versions}) == len(versions))
    *old, new = versions
    subject = registered(registry, *old)
    for mode in Mode:
        agree(answer(registry, subject, new, mode), problems(new, [(str(n), each) for n, each in enumerate(old)], mode))


def agree(said: bool | None, found: list[Problem]) -> None:
    ours = [each for each in found if not each.strict]
    if said is None:
        assert Rule.AMBIGUOUS in [each.rule for each in ours]
    else:
        assert said is (not ours), ours


def registered(registry: Registry, *versions: Schema) -> str:
    """A new subject with these versions."""
    assume(not any(is_in_map_of_itself(Document(schema).root, ()) for schema in versions))
    subject = f"verdict-{next(SUBJECTS)}"
    for schema in versions:
        _call(registry, "POST", f"/subjects/{subject}/versions", {"schema": json.dumps(schema)})
        _call(registry, "PUT", f"/config/{subject}", {"compatibility": "NONE"})
    return subject


def is_in_map_of_itself(type_: Type, within: tuple[str, ...]) -> bool:
    match type_.kind:
        case "record" if type_.name in within:
            return "" in within[within.index(type_.name) :]
        case "record":
            return any(is_in_map_of_itself(field.type, (*within, type_.name)) for field in type_.fields())
        case "map":
            return is_in_map_of_itself(type_.values(), (*within, ""))
        case "array":
            return is_in_map_of_itself(type_.items(), within)
    return any(is_in_map_of_itself(branch, within) for branch in type_.of_union())


def answer(registry: Registry, subject: str, schema: Schema, mode: Mode) -> bool | None:
    """Whether the subject may have the schema next; None when the registry cannot say."""
    _call(registry, "PUT", f"/config/{subject}", {"compatibility": mode.value})
    path = f"/compatibility/subjects/{subject}/versions" + ("" if mode.transitive else "/latest")
    try:
        found = _call(registry, "POST", path, {"schema": json.dumps(schema)})
    except urllib.error.HTTPError as error:
        if error.code == 422:
            return None
        raise
    said = found["is_compatible"]
    assert isinstance(said, bool)
    return said


def _call(registry: Registry, method: str, path: str, body: object) -> dict[str, object]:
    request = urllib.request.Request(
        registry.url + path,
        json.dumps(body).encode(),
        {"Content-Type": "application/vnd.schemaregistry.v1+json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        found: dict[str, object] = json.load(answer)
        return found
