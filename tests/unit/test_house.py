"""Tests the rules for all files: randomness, sizes, names and locks of dependencies. Also tests how campaigns start."""

import ast
import importlib.util
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tests.campaigns.__main__ as campaigns
from tests.campaigns import _measured as measured
from tests.campaigns._pieces import Campaign, Figures, Piece, Progress, run

CHECKOUT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = {
    "project": {
        "dependencies": ["left>=2"],
        "optional-dependencies": {
            "console": [],
            "embedded": [],
            "kafka": [],
            "mysql": [],
            "redis": [],
            "state": [],
            "views": [],
        },
    },
    "dependency-groups": {"test": [], "lint": [], "docs": []},
}
LEFT = "left==2.1 \\\n    --hash=sha256:00\n    # via changelog-publisher (pyproject.toml)\n"


def script(name: str) -> ModuleType:
    """Imports a script from `.ci`, the folder of continuous integration."""
    spec = importlib.util.spec_from_file_location(name, CHECKOUT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


OF_THE_MODULE = re.compile(r"(?<![.\w])random\.(?!Random\b)\w+\(")
UNSEEDED = re.compile(r"(?<![.\w])(os\.urandom\(|secrets\.\w+\(|hash\((?!Decimal))")
"""Matches random values that a seed does not repeat.

Hashes of texts and paths are such values, because they differ in each process. Hashes of numbers do not.
"""


def unseeded(path: Path) -> list[str]:
    """Returns the lines of a file that make random values which the seed does not repeat.

    In a file that does not import the module `random`, `random` is the name of a variable that holds a generator.
    """
    lines = path.read_text("utf-8").splitlines()
    patterns = [UNSEEDED, OF_THE_MODULE] if "import random" in lines else [UNSEEDED]
    return [line.strip() for line in lines if any(pattern.search(line) for pattern in patterns)]


def test_no_test_uses_randomness_that_the_seed_does_not_repeat() -> None:
    draws_of_seeds = {"conftest.py", "__main__.py", Path(__file__).name}
    paths = [path for path in (CHECKOUT / "tests").rglob("*.py") if path.name not in draws_of_seeds]
    assert {path: lines for path in paths if (lines := unseeded(path))} == {}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("import random\nn = random.randrange(9)", 1),
        ("import random\nrng = random.Random(seed)\nn = rng.randrange(9)", 0),
        ("from random import Random\nrandom = Random(seed)\nn = random.randrange(9)", 0),
        ("name = abs(hash(path))", 1),
        ("text = os.urandom(9)", 1),
    ],
)
def test_randomness_without_the_seed_is_found(tmp_path: Path, text: str, count: int) -> None:
    (tmp_path / "drawn.py").write_text(text, "utf-8")
    assert len(unseeded(tmp_path / "drawn.py")) == count


LINES_MAX = 450
"""The maximum number of lines of a file. A longer file must be divided by subject."""


def python_files() -> list[Path]:
    """Returns the Python files of the project, without files that `make` has installed or built."""
    folders = [path for path in CHECKOUT.iterdir() if path.is_dir() and path.name not in {".venv", ".cache", "dist"}]
    return [file for folder in folders for file in folder.rglob("*.py")]


def test_no_file_is_too_long() -> None:
    files = python_files()
    assert Path(__file__) in files
    lengths = {file.relative_to(CHECKOUT): len(file.read_text("utf-8").splitlines()) for file in files}
    assert {file: length for file, length in lengths.items() if length > LINES_MAX} == {}


MODULES_MAX = 15
"""The maximum number of modules of a folder of product code. A larger folder must be divided by subject."""

MODULES_MAX_OF_COMMANDS = 25
PRODUCT = ("connectors", "envelope", "schemas", "spark_jobs", "stamps")


def product_files() -> list[Path]:
    return [file.relative_to(CHECKOUT) for folder in PRODUCT for file in (CHECKOUT / folder).rglob("*.py")]


def test_no_folder_has_too_many_modules() -> None:
    counts = Counter(file.parent for file in product_files() if file.name != "__init__.py")
    limits = {Path("connectors/commands"): MODULES_MAX_OF_COMMANDS}
    assert {path: count for path, count in counts.items() if count > limits.get(path, MODULES_MAX)} == {}


ROLES = frozenset(
    {
        *("Assembler", "Binder", "ChunkReader", "ReadContext", "ReadTable", "ServerFacts", "Settings", "Stream"),
        *("Table", "TableColumn"),
    }
)
"""Names of classes that every source may define, because such a class has the same meaning in each source."""


def repeated_classes(texts: Mapping[Path, str]) -> dict[str, set[Path]]:
    """Returns the public class names that several modules define, each with its modules.

    A name in `ROLES` is left out if each of these modules belongs to another source.
    """
    modules: dict[str, list[Path]] = {}
    for path, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules.setdefault(node.name, []).append(path)
    return {
        name: set(paths)
        for name, paths in modules.items()
        if len(paths) > 1 and not (name in ROLES and _in_different_sources(paths))
    }


def _in_different_sources(paths: list[Path]) -> bool:
    sources = {path.parts[2] for path in paths if path.parts[:2] == ("connectors", "sources")}
    return len(sources) == len(paths)


def test_a_public_class_name_has_one_meaning() -> None:
    files = [file for file in product_files() if file.parts[0] != "stamps"]  # stamps/ is a distribution of its own
    assert repeated_classes({file: (CHECKOUT / file).read_text("utf-8") for file in files}) == {}


@pytest.mark.parametrize(
    ("name", "second_path", "is_problem"),
    [
        ("Shape", "connectors/sources/mysql/values.py", True),
        ("Settings", "connectors/sources/mysql/values.py", False),
        ("Settings", "connectors/sources/postgres/values.py", True),
        ("Settings", "connectors/config/model.py", True),
        ("_Shape", "connectors/config/model.py", False),
    ],
)
def test_a_repeated_class_name_is_found(name: str, second_path: str, is_problem: bool) -> None:
    text = f"class {name}:\n    pass\n"
    paths = {Path("connectors/sources/postgres/source.py"), Path(second_path)}
    assert repeated_classes(dict.fromkeys(paths, text)) == ({name: paths} if is_problem else {})


PARTICIPLES = frozenset(
    {
        *("asked", "begun", "chosen", "each", "found", "given", "got", "held", "kept", "looked", "made", "put", "said"),
        *("seen", "stored", "taken", "told", "wanted"),
    }
)
"""Words that must not be names of variables, parameters or attributes. They do not say what a variable contains."""


def bare_participles(text: str) -> list[str]:
    """Returns those names of variables, parameters and attributes in Python code that are in `PARTICIPLES`.

    Underscores at the ends of a name are ignored.
    """
    names = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                names.append(name)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                names.append(name)
    return [name for name in names if name.strip("_") in PARTICIPLES]


def test_variables_are_named_by_nouns() -> None:
    files = {file: bare_participles((CHECKOUT / file).read_text("utf-8")) for file in product_files()}
    assert {file: names for file, names in files.items() if names} == {}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("stored = read()", 1),
        ("self._stored, checkpoint = pair", 1),
        ("for found in rows: pass", 1),
        ("def take(taken): pass", 1),
        ("names = [each for each in rows]", 1),
        ("found()", 0),
        ("stored_at = now()", 0),
    ],
)
def test_a_bare_participle_is_found(text: str, count: int) -> None:
    assert len(bare_participles(text)) == count


@pytest.fixture(scope="module")
def check_locks() -> ModuleType:
    return script("check_locks")


@pytest.mark.parametrize(
    ("lock", "problem"),
    [
        (LEFT, None),
        (LEFT.replace("    --hash=sha256:00\n", ""), "left has no hash"),
        (LEFT.replace("2.1", "1.9"), "left is locked at 1.9, but pyproject.toml requires >=2"),
        (LEFT.replace("left", "right"), "left is not locked"),
        (LEFT + LEFT.replace("left", "right"), "right is locked, but no longer required"),
        ("--index-url https://packages.example/simple\n" + LEFT, "line 1 holds a path, an address or an option"),
        (LEFT + "right @ file:///home/someone/right\n", "line 4 holds a path, an address or an option"),
        (LEFT + "./right\n", "line 4 holds a path, an address or an option"),
        (LEFT + "    # via -r /home/someone/requirements.in\n", "line 4 holds a path, an address or an option"),
    ],
)
def test_problems_of_a_lock_are_named(
    check_locks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: str, problem: str | None
) -> None:
    (tmp_path / "requirements.lock").write_text(lock, "utf-8")
    monkeypatch.chdir(tmp_path)
    problems = list(check_locks.problems("requirements.lock", PROJECT))
    assert problems == [] if problem is None else problem in problems


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a" * 120, []),
        ("a\n" + "b" * 121, [2]),
        ("| " + "b" * 121 + " |", []),
        ("```\n" + "b" * 121 + "\n```\n" + "c" * 121, [4]),
        ("```sh\n" + "b" * 121 + "\n```", [2]),
    ],
)
def test_lines_that_are_too_long_are_found(text: str, lines: list[int]) -> None:
    assert list(script("check_lines").too_long(text)) == lines


def test_the_docs_install_the_wheel_that_is_built() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"]
    pages = [CHECKOUT / "README.md", *(CHECKOUT / "docs").rglob("*.md")]
    wheels = {
        name for page in pages for name in re.findall(r"changelog_publisher-[\w.-]+\.whl", page.read_text("utf-8"))
    }
    assert wheels == {f"changelog_publisher-{project['version']}-py3-none-any.whl"}
    assert not [
        page.name for page in pages if re.search(r"pip install [^\n]*changelog-publisher", page.read_text("utf-8"))
    ]


def test_a_run_of_a_campaign_is_added_to_the_figures_and_to_the_table(tmp_path: Path) -> None:
    assert "__main__" not in campaigns.names()
    (tmp_path / "campaigns.md").write_text(f"# Runs\n\n{measured.HEAD}", "utf-8")
    figures = {"rounds": 50, "kills": 50, "faults": {"crash": 2, "hang": 3}, "changes": 1000, "reads": 24, "lost": 0}
    run = {"day": "2026-11-21", "campaign": "postgres", "rounds": 50, "seed": 7, "seconds": 601, "machine": "2 cores"}
    row = measured.append(tmp_path, {**run, "figures": figures})
    assert row == "| 2026-11-21 | postgres | 50 | 7 | 10 | 1,024 | 5 faults, 50 kills | 2 |\n"
    measured.append(tmp_path, {**run, "figures": figures})
    assert (tmp_path / "campaigns.md").read_text("utf-8") == f"# Runs\n\n{measured.HEAD}{row}{row}"
    assert measured.read(tmp_path)[1]["figures"] == figures


def test_the_table_of_campaigns_has_every_run() -> None:
    page = (measured.MEASURED / "campaigns.md").read_text("utf-8")
    assert page == measured.with_table(page, measured.read(measured.MEASURED))


def _stub(fault_at: int | None, tried: list[int]) -> Campaign:
    """Returns a campaign with pieces of two rounds. Each piece that runs adds its first round to `tried`. The piece
    that begins with round `fault_at` finds a fault.
    """

    def one(piece: Piece) -> Figures:
        tried.append(piece.first)
        assert piece.first != fault_at, "lost a row"
        return {"kills": piece.rounds, "at": {"here": piece.rounds, str(piece.first): 1}, "rates": [piece.seed % 7]}

    return Campaign(site=lambda: nullcontext(one), rounds=2)


@pytest.mark.parametrize("at_once", [1, 3])
def test_an_interrupted_campaign_continues_with_the_remaining_pieces(tmp_path: Path, at_once: int) -> None:
    file, tried = tmp_path / "soak" / "kept.json", list[int]()
    with pytest.raises(AssertionError, match=r"round 2 to 3 \(seed \d+\): lost a row"):
        run(_stub(2, tried), 5, seed=7, progress=Progress(file))
    assert tried == [0, 2]
    tried.clear()
    figures = run(replace(_stub(None, tried), at_once=at_once), 5, seed=7, progress=Progress(file))
    assert sorted(tried) == [2, 4]
    assert figures == run(_stub(None, []), 5, seed=7)
    assert figures.pop("rates") != run(_stub(None, []), 5, seed=8).pop("rates")
    assert figures == {"rounds": 5, "kills": 5, "at": {"here": 5, "0": 1, "2": 1, "4": 1}}


def test_a_campaign_without_a_seed_continues_the_interrupted_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaigns, "KEPT", tmp_path)
    assert campaigns.unfinished("postgres", 50) is None
    for name in ("postgres-7-50", "windows-8-50", "postgres-9-40"):
        Progress(tmp_path / f"{name}.json").add(Piece(first=0, rounds=1, seed=1), {})
    assert campaigns.unfinished("postgres", 50) == 7


def test_a_test_that_requests_no_server_cannot_start_one() -> None:
    with pytest.raises(pytest.fail.Exception, match="the test starts postgres, but does not request"):
        subprocess.run(["/usr/lib/postgresql/bin/postgres", "-D", "."], check=True)


def test_an_unknown_campaign_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        campaigns.main(["nonsense"])
    assert "invalid choice: 'nonsense'" in capsys.readouterr().err
