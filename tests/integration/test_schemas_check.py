"""Tests that `changelog schemas check` compares schema files with their earlier versions. The earlier versions are in a
git repository, in a folder or in a real schema registry.
"""

import json
import os
import re
import shutil
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from changelog.connectors import cli
from changelog.connectors.demo import booking
from changelog.connectors.kafka.registry import Registry
from changelog.connectors.servers.unprivileged import free_port
from changelog.schemas import avro
from changelog.schemas.types import Primitive, Struct
from tests.servers.registry import Registry as Server

P = Primitive

SCHEMAS = Path(__file__).parents[2] / "schemas"

AMOUNT = {"name": "amount", "type": ["null", "string"], "default": None}
"""A field that may be added or removed in any compatibility mode."""


class Repository:
    """A git repository with schema files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def git(self, *words: str) -> str:
        identity = ("-c", "user.name=tests", "-c", "user.email=tests@example.org", "-c", "commit.gpgsign=false")
        command = ["git", *identity, "-C", str(self.folder), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "a change")

    def write(self, entity: str, *fields: dict[str, Any], file: str | None = None, **more: Any) -> None:
        """Writes the schema file of an entity whose columns are the key `id` and these fields."""
        columns = [{"name": "id", "type": "long"}, *fields]
        state = {"type": "record", "name": "State", "namespace": f"booking.{entity}", **more, "fields": columns}
        path = self.folder / (file or f"schemas/{entity}.avsc")
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(state, indent=2), "utf-8")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A repository whose main branch has the schema of `order`. The branch `mine` is checked out, and the current
    folder is the repository's root.
    """
    for variable in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.chdir(tmp_path)
    new_repository = Repository(tmp_path)
    new_repository.git("init", "--quiet", "--initial-branch", "main")
    new_repository.write("order", AMOUNT)
    new_repository.commit()
    new_repository.git("switch", "--quiet", "--create", "mine")
    return new_repository


def check(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> list[str]:
    """Returns the lines that `changelog schemas check WORDS` prints."""
    capsys.readouterr()
    assert cli.main(["schemas", "check", *words]) == code
    output = capsys.readouterr()
    assert output.err == ""
    return output.out.splitlines()


def refused(capsys: pytest.CaptureFixture[str], *words: str, code: int = 3) -> str:
    """Returns the only line that `changelog schemas check WORDS` prints when it fails."""
    capsys.readouterr()
    assert cli.main(["schemas", "check", *words]) == code
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    return line.removeprefix("changelog: ")


def rules(lines: list[str]) -> list[tuple[str, str, str]]:
    """Returns, for each finding, the file, the rule, and the path in the schema."""
    findings = [line.split() for line in lines if ": ERROR " in line]
    return [(finding[0].rstrip(":"), finding[2], finding[3].rstrip(":")) for finding in findings]


def test_unchanged_and_compatible_schemas_are_clean(repository: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = check(capsys)
    assert line.startswith("1 schema against git:main (")
    assert line.endswith("): 1 unchanged")
    repository.write("order", AMOUNT, {"name": "note", "type": ["null", "string"], "default": None})
    repository.write("room")
    assert check(capsys)[-1].endswith("): 1 compatible, 1 new")


def test_an_incompatible_change_is_reported_like_a_compiler_error(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.write("order", {"name": "amount", "type": "string"}, {"name": "note", "type": "string"})
    first, second, note, summary = check(capsys, "--mode", "BACKWARD_TRANSITIVE", code=1)
    expected = (
        "schemas/order.avsc: ERROR FIELD_NO_DEFAULT /fields/note: v2 cannot read v1 data (BACKWARD_TRANSITIVE): new"
    )
    assert second.startswith(expected)
    assert second.endswith('; give "note" a default')
    assert first.startswith("schemas/order.avsc: ERROR BRANCH_MISSING /fields/amount: v2 cannot read v1 data")
    assert note.startswith("schemas/order.avsc: note: v1 is commit ")
    assert summary.endswith(": 1 incompatible")
    assert rules(check(capsys, "--mode", "FORWARD")) == []


def test_only_versions_that_were_on_the_main_branch_are_compared(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.write("order", {"name": "amount", "type": "bytes"})  # this version was never on the main branch
    repository.commit()
    repository.write("order")
    repository.commit()
    repository.git("switch", "--quiet", "main")
    repository.commit()
    repository.git("merge", "--quiet", "--no-ff", "--message", "merged", "mine")
    repository.git("switch", "--quiet", "--create", "next")
    assert check(capsys)[-1].endswith(": 1 unchanged")
    repository.write("order", {"name": "amount", "type": ["null", "int"], "default": None})
    lines = check(capsys, code=1)
    assert {rule[2] for rule in rules(lines)} == {"/fields/amount"}
    assert all("v3" in line and "v1" in line and "v2" not in line for line in lines if "cannot read" in line)
    assert rules(check(capsys, "--mode", "FULL")) == []


def test_the_same_finding_about_several_versions_is_reported_once(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("b", "c"):
        repository.write("order", AMOUNT, {"name": name, "type": ["null", "int"], "default": None})
        repository.commit()
    repository.git("branch", "--force", "main", "mine")
    repository.write("order", AMOUNT, {"name": "d", "type": "int"})
    (finding,) = [line for line in check(capsys, "--mode", "BACKWARD_TRANSITIVE", code=1) if "FIELD_NO_DEFAULT" in line]
    assert "v4 cannot read v1, v2 and v3 data" in finding


def test_a_moved_file_is_followed_and_a_removed_file_is_an_error(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.write("room", AMOUNT)
    repository.commit()
    repository.git("branch", "--force", "main", "mine")
    (repository.folder / "contracts").mkdir()
    repository.git("mv", "schemas/order.avsc", "contracts/bookings.avsc")
    assert check(capsys, "contracts", "schemas")[-1].endswith(": 2 unchanged")
    repository.commit()
    repository.git("branch", "--force", "main", "mine")
    repository.write("order", {"name": "amount", "type": "string"}, file="contracts/bookings.avsc")
    lines = check(capsys, "contracts", code=1)
    assert rules(lines)[0] == ("contracts/bookings.avsc", "BRANCH_MISSING", "/fields/amount")
    assert check(capsys)[-1].endswith(": 1 unchanged")  # files of other folders do not count as removed
    repository.git("rm", "--quiet", "schemas/room.avsc")
    assert rules(check(capsys, "schemas/room.avsc", code=1)) == [("schemas/room.avsc", "SUBJECT_REMOVED", "/")]
    repository.git("restore", "--staged", "--worktree", "schemas/room.avsc")
    repository.write("hall", AMOUNT, file="schemas/room.avsc")  # this changes the subject of the file
    assert rules(check(capsys, code=1)) == [("schemas/room.avsc", "SUBJECT_REMOVED", "/")]


def test_a_subject_with_the_mode_none_may_be_removed(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.write("order", AMOUNT, compatibility="NONE")
    repository.write("room")
    repository.commit()
    repository.git("branch", "--force", "main", "mine")
    repository.write("order", {"name": "amount", "type": "bytes"}, compatibility="NONE")
    assert check(capsys)[-1].endswith(": 1 compatible, 1 unchanged")
    repository.git("rm", "--quiet", "--force", "schemas/order.avsc")
    assert check(capsys)[-1].endswith(": 1 removed, 1 unchanged")


def test_a_file_chooses_its_own_mode(repository: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    other = {"name": "note", "type": "string"}
    repository.write("order", AMOUNT, other, compatibility="FORWARD")
    assert rules(check(capsys)) == []
    repository.write("order", AMOUNT, other, compatibility="BACKWARD")
    assert "(BACKWARD)" in check(capsys, "--mode", "NONE", code=1)[0]
    repository.write("order", AMOUNT, compatibility="BACKWARDS")
    assert rules(check(capsys, code=3)) == [("schemas/order.avsc", "UNKNOWN_MODE", "/")]


@pytest.mark.parametrize(
    ("content", "rule", "text"),
    [
        (b'{"type": "record",\n "name": }', "INVALID_JSON", "is not JSON: Expecting value: line 2 column 10"),
        (b'{"type": "int", "default": NaN}', "INVALID_JSON", "is not JSON: NaN is not a JSON number"),
        (b"\xff", "INVALID_JSON", "is not UTF-8 at byte 0"),
        pytest.param(b"[" * 100_000, "INVALID_JSON", "is not JSON", id="deep"),
        (b'{"type": "record", "name": "X"}', "INVALID_AVRO", "is not an Avro schema: a record has no fields"),
    ],
)
def test_a_file_that_is_not_a_schema_is_reported_next_to_the_other_files(
    repository: Repository, capsys: pytest.CaptureFixture[str], content: bytes, rule: str, text: str
) -> None:
    (repository.folder / "schemas" / "bad.avsc").write_bytes(content)
    (repository.folder / "schemas" / "lost.avsc").symlink_to("nowhere")
    bad, lost, summary = check(capsys, code=3)
    assert bad.startswith(f"schemas/bad.avsc: ERROR {rule} /: {text}")
    assert lost == "schemas/lost.avsc: ERROR UNREADABLE /: cannot be read: No such file or directory"
    assert summary.endswith(": 2 invalid, 1 unchanged")
    repository.commit()
    repository.git("branch", "--force", "main", "mine")
    repository.write("order", AMOUNT, file="schemas/bad.avsc")  # the invalid file does not count as a version
    (repository.folder / "schemas" / "lost.avsc").unlink()
    assert rules(check(capsys)) == []


def test_a_check_that_has_nothing_to_compare_with_fails(
    repository: Repository, capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert refused(capsys, "--against", "git:nothing", code=2).startswith("git has no commit nothing; fetch it")
    assert refused(capsys, "--against", "git:--all", code=2).startswith("git has no commit --all")
    assert refused(capsys, "--against", "released", code=2).startswith("--against released: no such folder")
    for words in (["nowhere"], ["schemas", "nowhere"]):
        assert refused(capsys, *words, code=2).startswith("nowhere: there are no schemas")
    outside = tmp_path_factory.mktemp("outside")
    Repository(outside).write("order", file="order.avsc")
    error = refused(capsys, "schemas", str(outside), code=2)
    assert error.startswith(f"the file {outside}/order.avsc is not in the repository ")
    repository.git("branch", "--move", "main", "trunk")
    assert refused(capsys) == (
        "git has no main branch here: neither origin/HEAD nor main nor master; fetch it, or say --against git:REF"
    )
    assert check(capsys, "--against", "git:trunk")[-1].endswith(": 1 unchanged")
    repository.git("switch", "--quiet", "--orphan", "main")
    repository.write("order")
    repository.commit()
    repository.git("switch", "--quiet", "trunk")
    assert refused(capsys).startswith("HEAD and main have no common commit; say --against git:REF")


def test_outside_a_repository_and_without_git_the_error_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    Repository(tmp_path).write("order")
    assert refused(capsys) == (
        "the folder schemas is not in a git repository; git init, or say --against DIR or registry:URL"
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    assert refused(capsys).startswith("git is not installed; install it, or say")


def test_in_a_git_hook_the_repository_of_the_files_is_used(
    repository: Repository, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"GIT_DIR": ".git", "GIT_INDEX_FILE": ".git/index", "GIT_PREFIX": "schemas/"}.items():
        monkeypatch.setenv(name, value)
    assert check(capsys)[-1].endswith(": 1 unchanged")


def test_a_repository_with_sha256_hashes_can_be_compared(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(repository.folder / ".git")
    repository.git("init", "--quiet", "--initial-branch", "main", "--object-format", "sha256")
    repository.commit()
    repository.git("mv", "schemas/order.avsc", "schemas/bill.avsc")
    repository.commit()
    repository.write("order", {"name": "amount", "type": "int"}, file="schemas/bill.avsc")
    findings = set(rules(check(capsys, "--mode", "BACKWARD", code=1)))
    assert findings == {("schemas/bill.avsc", "BRANCH_MISSING", "/fields/amount")}


def test_a_shallow_clone_compares_the_commits_that_it_has_and_says_so(
    repository: Repository,
    capsys: pytest.CaptureFixture[str],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repository.write("order")
    repository.commit()
    repository.git("switch", "--quiet", "--force-create", "main")
    clone = tmp_path_factory.mktemp("clone")
    repository.git("clone", "--quiet", "--depth", "1", "--branch", "main", f"file://{repository.folder}", str(clone))
    monkeypatch.chdir(clone)
    Repository(clone).write("order", {"name": "amount", "type": ["null", "int"], "default": None})
    note, summary = check(capsys)
    assert note == "note: the clone is shallow: versions before its first commit were not compared"
    assert summary.startswith("1 schema against git:origin/HEAD (")


def test_schemas_are_compared_with_those_in_a_folder(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.write("order", {"name": "amount", "type": "string"}, file="released/bookings.avsc")
    repository.write("room", file="released/room.avsc")
    lines = check(capsys, "--against", "released", code=1)
    assert ("released/room.avsc", "SUBJECT_REMOVED", "/") in rules(lines)
    assert "schemas/order.avsc: note: v1 is file released/bookings.avsc" in lines
    assert lines[-1] == "2 schemas against released: 1 incompatible, 1 removed"


def test_each_format_shows_the_same_findings(repository: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    repository.write("order", {"name": "amount", "type": "string"})
    repository.write("room", file="schemas/a,b: 50%.avsc")
    (repository.folder / "schemas" / "bad.avsc").write_text("{", "utf-8")
    result = json.loads(check(capsys, "--format", "json", code=3)[0])
    assert json.loads(check(capsys, "--json", code=3)[0]) == result
    assert (result["clean"], {verdict["file"]: verdict["state"] for verdict in result["verdicts"]}) == (
        False,
        {"schemas/a,b: 50%.avsc": "new", "schemas/bad.avsc": "invalid", "schemas/order.avsc": "incompatible"},
    )
    finding = result["verdicts"][2]["findings"][0]
    text = (repository.folder / "schemas" / "order.avsc").read_text("utf-8").splitlines()
    assert '"name": "amount"' in text[finding["line"] - 1]
    assert (finding["rule"], finding["against"], finding["breaks"]) == ("BRANCH_MISSING", ["v1"], "new readers")
    suite = ElementTree.fromstring("\n".join(check(capsys, "--format", "junit", code=3)))[0]
    assert {name: suite.get(name) for name in ("tests", "failures", "errors")} == {
        "tests": "3", "failures": "1", "errors": "1",
    }  # fmt: skip
    assert [case.get("name") for case in suite.iter("testcase")] == [verdict["file"] for verdict in result["verdicts"]]
    assert [fault.get("type") for fault in suite.iter("failure")] == ["BRANCH_MISSING"]
    bad, order, _ = check(capsys, "--format", "github", code=3)
    assert bad.startswith("::error file=schemas/bad.avsc,line=1,title=INVALID_JSON /::is not JSON")
    assert order.startswith(
        f"::error file=schemas/order.avsc,line={finding['line']},title=BRANCH_MISSING /fields/amount::v2"
    )
    (repository.folder / "schemas" / "a,b: 50%.avsc").write_text("{", "utf-8")
    assert "file=schemas/a%2Cb%3A 50%25.avsc," in check(capsys, "--format", "github", code=3)[0]


def test_control_characters_and_characters_that_xml_forbids_are_escaped(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository.folder / "schemas" / "a\x1b[31m\ufffe\uffff\n::error::.avsc").write_text("{", "utf-8")
    for name in ("text", "github"):
        lines = check(capsys, "--format", name, code=3)
        assert len(lines) == 2
        assert "\x1b" not in lines[0]
    ElementTree.fromstring("\n".join(check(capsys, "--format", "junit", code=3)))


def test_schemas_are_compared_with_those_in_a_registry(
    registry: Server, repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = f"checked-{os.getpid()}"
    shape = Struct(fields=(("id", P.LONG), ("amount", P.STRING)))

    def write(*fields: tuple[str, Primitive], **more: Any) -> None:
        state = avro.state_schema("order", Struct(fields=(("id", P.LONG), *fields)), ["id"], prefix)
        state["fields"][-1] |= more
        (repository.folder / "schemas" / "order.avsc").write_text(json.dumps(state, indent=1), "utf-8")

    with closing(Registry(registry.url, {})) as client:
        write(("amount", P.STRING))
        against = ("schemas/order.avsc", "--against", f"registry:{registry.url}")
        assert check(capsys, *against)[-1] == f"1 schema against registry:{registry.url}: 1 new"
        for version in (shape, Struct(fields=shape.fields[:1])):
            client.register(f"{prefix}.order-value", avro.value_schema("order", version, ["id"], prefix))
    assert check(capsys, *against)[-1].endswith(": 1 compatible")
    write(("amount", P.INT), doc="what people add is not registered", aliases=["price"])
    lines = check(capsys, *against, code=1)
    assert {rule[:2] for rule in rules(lines)} == {("schemas/order.avsc", "BRANCH_MISSING")}
    assert "/fields/current/fields/amount: v3 cannot read v1 data (FULL_TRANSITIVE)" in lines[0]
    assert "schemas/order.avsc: note: v1 is version 1 in the registry" in lines
    (verdict,) = json.loads(check(capsys, *against, "--format", "json", code=1)[0])["verdicts"]
    text = (repository.folder / "schemas" / "order.avsc").read_text("utf-8").splitlines()
    assert '"name": "amount"' in text[verdict["findings"][0]["line"] - 1]
    repository.write("room", {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["a"]}})
    notes = check(capsys, "schemas/room.avsc", *against[1:])
    assert notes[0] == "note: schemas/room.avsc was not compared: it is not the schema of an entity's columns"
    error = refused(capsys, "--against", f"registry:http://user:secret@127.0.0.1:{free_port()}")
    assert "127.0.0.1" in error
    assert "secret" not in error
    error = refused(capsys, "--against", "registry:", code=2)
    assert error.startswith("changelog.toml: no such file")


def test_the_output_in_the_documentation_is_correct(repository: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    docs = (SCHEMAS.parent / "docs" / "how-to" / "schemas.md").read_text("utf-8")
    assert f"```json\n{(SCHEMAS / 'session.avsc').read_text('utf-8')}```" in docs
    for entity in booking.COMPARED:
        shutil.copy(SCHEMAS / f"{entity}.avsc", repository.folder / "schemas")
    repository.git("checkout", "--quiet", "--orphan", "new")
    repository.commit()
    repository.git("branch", "--force", "main", "new")
    order = json.loads((SCHEMAS / "order.avsc").read_text("utf-8"))
    fields = {field["name"]: field for field in order["fields"]}
    fields["amount"]["type"][1] |= {"precision": 12, "scale": 4}
    order["fields"].insert(5, {"name": "currency", "type": "string"})
    (repository.folder / "schemas" / "order.avsc").write_text(json.dumps(order), "utf-8")
    documented_output = docs.split("$ changelog schemas check\n")[1].split("```")[0]
    commits = re.compile(r"commit [0-9a-f]+ of [0-9-]+|\([0-9a-f]{7}\)")
    output = "\n".join(check(capsys, code=1)) + "\n"
    assert commits.sub("…", output) == commits.sub("…", documented_output)
