"""Tests how the text of schema files is written and read, and which line belongs to each field.

Also tests the workflow and the hook with which other projects check their schema files.
"""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from changelog.connectors import cli
from changelog.connectors.schema_files import files
from changelog.connectors.schema_files.reports import FORMATS
from changelog.schemas import avro
from changelog.schemas.compatibility import Mode, Rule
from tests.unit.schemas.strategies import names, shapes

CHECKOUT = Path(__file__).parents[2]

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from(["fields", "type", "a"]), inner),
)


@given(VALUES)
@settings(deadline=None)
def test_the_text_of_a_schema_is_its_json(value: Any) -> None:
    text = files.text_of(value)
    assert json.loads(text) == value
    assert text.endswith("\n")


def test_the_text_of_a_schema_has_one_line_for_each_field() -> None:
    schema = {
        "type": "record",
        "name": "R",
        "key": ["a", "ö"],
        "fields": [{"name": "a", "doc": "x" * 120}, {"name": "b"}],
    }
    assert files.text_of(schema).splitlines() == [
        "{",
        '  "type": "record",',
        '  "name": "R",',
        '  "key": ["a", "ö"],',
        '  "fields": [',
        "    {",
        '      "name": "a",',
        f'      "doc": "{"x" * 120}"',
        "    },",
        '    {"name": "b"}',
        "  ]",
        "}",
    ]


@given(shapes, names)
@settings(deadline=None)
def test_a_file_is_read_back_and_merging_it_changes_nothing(shape: Any, entity: str) -> None:
    state = avro.state_schema(entity, shape, [shape.fields[0][0]], "booking")
    contract = files.parse("x.avsc", files.text_of(state).encode())
    assert (contract.rule, contract.schema) == ("", state)
    assert files.text_of(files.merged(state, contract.schema)) == files.text_of(state)
    lines = contract.text.split("\n")
    for field in state["fields"]:
        assert json.dumps(field["name"]) in lines[contract.line(f"/fields/{field['name']}") - 1]


NESTED = """\
{
  "type": "record", "name": "R", "fields": [
    {"name": "box", "type": ["null", {
      "type": "record", "name": "Box", "doc": "a \\"name\\": \\"late\\" in {a text",
      "fields": [
        {"type": "int", "name": "late"},
        {"name": "fields", "type": "int"}
      ]}]},
    {"name": "late", "type": "int"},
    {"name": "other", "type": {"type": "array", "items": {"type": "record", "name": "Other", "fields": [
        {"name": "late", "type": "int"}]}}}
  ]
}
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("/", 1),
        ("/fields/box", 3),
        ("/fields/box/fields/late", 6),
        ("/fields/box/fields/fields", 7),
        ("/fields/late", 9),
        ("/fields/late/fields/nothing", 9),
        ("/fields/other/items/fields/late", 11),
        ("/fields/gone", 1),
        ("/fields", 1),
    ],
)
def test_the_line_of_a_field_is_found(path: str, line: int) -> None:
    json.loads(NESTED)
    assert files.Contract(file="x.avsc", text=NESTED).line(path) == line


@pytest.mark.parametrize(
    ("schema", "name", "subject"),
    [
        (
            {"type": "record", "name": "State", "namespace": "my.booking.order_x002D_item"},
            None,
            "my.booking.order-item",
        ),
        ({"type": "record", "name": "Delta", "namespace": "changelog"}, "changelog.Delta", "changelog.Delta"),
        ({"type": "enum", "name": "a.B", "namespace": "c"}, "a.B", "a.B"),
        (["null", "int"], None, "x"),
    ],
)
def test_a_file_has_the_subject_and_the_name_of_its_schema(schema: Any, name: str | None, subject: str) -> None:
    contract = files.Contract(file="schemas/x.avsc", text="", schema=schema)
    assert contract.subject == subject
    assert name is None or contract.name == name


def test_the_workflow_and_the_hook_can_be_used() -> None:
    workflows = [CHECKOUT / "docs" / "schemas-workflow.yml", *(CHECKOUT / ".github" / "workflows").glob("*.yml")]
    schema = ["--builtin-schema", "vendor.github-workflows"]
    command = [sys.executable, "-m", "check_jsonschema", *schema, *map(str, workflows)]
    process = subprocess.run(command, check=False, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout
    (hook,) = YAML(typ="safe").load(CHECKOUT / ".pre-commit-hooks.yaml")
    assert (hook["id"], hook["language"], hook["pass_filenames"]) == ("changelog-schemas", "python", False)
    steps = YAML(typ="safe").load(workflows[0])["jobs"]["check"]["steps"]
    assert steps[0]["with"]["fetch-depth"] == 0
    for line in (hook["entry"], steps[-1]["run"]):
        program, *words = line.split()
        assert program == "changelog"
        with pytest.raises(SystemExit, match="0"):
            cli.main([*words, "--help"])


def test_lint_says_that_a_checkout_without_git_has_nothing_to_compare_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("check_schemas", CHECKOUT / ".ci" / "check_schemas.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert script.main() == 0
    assert capsys.readouterr().out == "schemas: not compared: the folder . is not in a git repository\n"


def test_the_documentation_lists_every_rule_every_mode_and_every_format() -> None:
    docs = (CHECKOUT / "docs" / "reference" / "schema-rules.md").read_text("utf-8")
    rules = set(re.findall(r"`([A-Z_]{4,})`", docs.split("## Rules")[1].split("## Formats")[0]))
    ours = {"SUBJECT_REMOVED", "INVALID_JSON", "INVALID_AVRO", "UNREADABLE", "UNKNOWN_MODE"}
    assert rules == {*map(str, Rule), *ours}
    for word in (*(mode for mode in Mode if not mode.transitive), *FORMATS):
        assert f"| `{word}`" in docs


BARE = """
import sys
for name in ("confluent_kafka", "fastavro"):
    sys.modules[name] = None
from changelog.connectors import cli
sys.exit(cli.main(sys.argv[1:]))
"""


def test_only_a_comparison_with_a_registry_needs_the_extra(tmp_path: Path) -> None:
    def check(against: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", BARE, "schemas", "check", "schemas", "--against", against]
        return subprocess.run(command, check=False, capture_output=True, text=True, cwd=CHECKOUT)

    process = check("schemas")
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.endswith(" unchanged\n")
    process = check("registry:http://127.0.0.1:1")
    assert process.returncode == 2
    assert 'pip install "changelog_publisher-0.1.0-py3-none-any.whl[kafka]"' in process.stderr
    assert len(process.stderr.splitlines()) == 1
