"""Versions of schema files in git: what the main line held, commit by commit."""

import os
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from changelog.connectors.schema_files import files
from changelog.connectors.schema_files.files import Contract
from changelog.connectors.schema_files.history import Earlier, past
from changelog.envelope.errors import ChangelogError, Kind

MAIN = ("origin/HEAD", "origin/main", "origin/master", "main", "master")
"""Where the main branch is looked for, in this order."""

ELSEWHERE = "say --against DIR or registry:URL"

_CONFIG = ("-c", "core.quotepath=off", "-c", "color.ui=false", "-c", "log.showSignature=false")
_ALL = f":(top,glob)**/*{files.SUFFIX}"

_OF_A_HOOK = ("GIT_DIR", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_WORK_TREE")
"""What git tells its hooks of the repository, some of it relative to a folder that is not ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A file in a commit: its content's id, None where it was deleted; `before` is its path before the commit."""

    commit: str
    day: str
    path: str
    before: str
    blob: str | None


class Repository:
    """The repository in which a folder stands. Raises ChangelogError: PRECONDITION when there is none, or no git."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.root = Path(self._git("rev-parse", "--show-toplevel").rstrip("\n"))

    def commit(self, ref: str) -> str:
        """The commit that `ref` names. Raises USAGE when there is none."""
        found = self._resolve(ref)
        if found is None:
            raise ChangelogError(Kind.USAGE, f"git knows no commit {ref}", hint=f"fetch it, or {ELSEWHERE}")
        return found

    def base(self) -> tuple[str, str]:
        """Where HEAD left the main branch, and that branch's name. Raises PRECONDITION when that is not known."""
        main = next((name for name in MAIN if self._resolve(name)), None)
        if main is None:
            raise ChangelogError(
                Kind.PRECONDITION,
                "git has no main branch here: neither origin/HEAD nor main nor master",
                hint="fetch it, or say --against git:REF",
            )
        try:
            return self._git("merge-base", "HEAD", main).strip(), main
        except ChangelogError as error:
            hint = "fetch more of the history: git fetch --unshallow" if self.is_shallow else "say --against git:REF"
            raise ChangelogError(
                Kind.PRECONDITION, f"git knows no commit that HEAD and {main} have in common", hint=hint
            ) from error

    @cached_property
    def is_shallow(self) -> bool:
        """Whether older commits were not fetched."""
        return self._git("rev-parse", "--is-shallow-repository").strip() == "true"

    def path(self, file: Path) -> str:
        """The path of a file in the repository. Raises USAGE when it is outside."""
        whole = Path(os.path.realpath(file.parent)) / file.name
        try:
            return whole.relative_to(os.path.realpath(self.root)).as_posix()
        except ValueError:
            raise ChangelogError(Kind.USAGE, f"{file} is not in the repository {self.root}", hint=ELSEWHERE) from None

    def tree(self, commit: str) -> dict[str, str]:
        """The schema files of a commit: path to the content's id."""
        found = {}
        for entry in self._git("ls-tree", "-r", "-z", "--full-tree", commit).split("\0"):
            about, _, path = entry.partition("\t")
            if path.endswith(files.SUFFIX) and about.split()[1] == "blob":
                found[path] = about.split()[2]
        return found

    def changes(self, commit: str) -> list[Change]:
        """What happened to schema files on the main line up to a commit, newest first.

        The main line is that of first parents: a branch counts as a whole, when it was merged, for nothing was
        published by what stood on it before.
        """
        found = []
        format_ = "--format=%x01%H %cs"
        listed = self._git(
            *("log", "--first-parent", "-m", "-M", "--raw", "--no-abbrev", "-z", format_, commit, "--", _ALL)
        )
        words = iter(listed.split("\0"))
        for word in words:
            word = word.removeprefix("\n")
            if word.startswith("\1"):
                name, day = word[1:].split()
            elif word:
                *_, blob, status = word.split()
                before = next(words)
                path = next(words) if status[0] in "RC" else before
                is_there = blob.strip("0") != ""
                found.append(Change(commit=name, day=day, path=path, before=before, blob=blob if is_there else None))
        return found

    def contents(self, blobs: Collection[str]) -> dict[str, bytes]:
        """What the ids stand for."""
        if not blobs:
            return {}
        listed = self._run("cat-file", "--batch", stdin="".join(f"{blob}\n" for blob in blobs).encode())
        found, at = {}, 0
        while at < len(listed):
            end = listed.index(b"\n", at)
            blob, _, size = listed[at:end].decode().split()
            found[blob] = listed[end + 1 : end + 1 + int(size)]
            at = end + 2 + int(size)
        return found

    def _resolve(self, ref: str) -> str | None:
        try:
            return self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}").strip()
        except ChangelogError:
            return None

    def _git(self, *words: str) -> str:
        return os.fsdecode(self._run(*words))

    def _run(self, *words: str, stdin: bytes = b"") -> bytes:
        inherited = {name: value for name, value in os.environ.items() if name not in _OF_A_HOOK}
        environment = {**inherited, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}
        try:
            done = subprocess.run(
                ["git", *_CONFIG, "-C", str(self._folder), *words],
                input=stdin,
                capture_output=True,
                check=False,
                env=environment,
            )
        except FileNotFoundError as error:
            raise ChangelogError(
                Kind.PRECONDITION, "git is not installed", hint=f"install it, or {ELSEWHERE}"
            ) from error
        if done.returncode:
            raise self._error(done.stderr.decode(errors="replace"))
        return done.stdout

    def _error(self, said: str) -> ChangelogError:
        if "not a git repository" in said:
            return ChangelogError(
                Kind.PRECONDITION, f"{self._folder} is not in a git repository", hint=f"git init, or {ELSEWHERE}"
            )
        line = next(iter(said.splitlines()), "it failed").removeprefix("fatal: ")
        return ChangelogError(Kind.PRECONDITION, f"git: {line}", hint=f"mend that, or {ELSEWHERE}")


def in_git(contracts: Sequence[Contract], paths: Sequence[Path], ref: str) -> Earlier:
    """All versions on the main line up to `ref`, or up to where HEAD left the main branch if it is empty.

    Subjects below `paths` that have no file now count as removed. Raises ChangelogError: PRECONDITION and USAGE.
    """
    repository = Repository(next((folder for folder in _folders(paths[0]) if folder.is_dir()), Path()))
    commit, branch = (repository.commit(ref), ref) if ref else repository.base()
    tree, changes = repository.tree(commit), repository.changes(commit)
    now = {repository.path(Path(contract.file)): contract for contract in contracts}
    contents = repository.contents({*tree.values(), *(change.blob for change in changes if change.blob)})
    earlier = {path: files.parse(path, contents[blob]) for path, blob in tree.items()}
    origins = _origins(now, earlier)
    pasts = {
        contract.file: past(contract, _found(changes, origins.get(path, path), contents))
        for path, contract in now.items()
        if not contract.rule
    }
    scopes = [repository.path(path) for path in paths]
    gone = earlier.keys() - origins.values()
    removed = tuple(
        Contract(file=os.path.relpath(repository.root / path), text=each.text, schema=each.schema)
        for path, each in sorted(earlier.items())
        if path in gone and not each.rule and any(_is_below(path, scope) for scope in scopes)
    )
    notes = ("the clone is shallow: versions before its first commit were not compared",) * repository.is_shallow
    return Earlier(against=f"git:{branch} ({commit[:7]})", pasts=pasts, removed=removed, notes=notes)


def _origins(now: Mapping[str, Contract], earlier: Mapping[str, Contract]) -> dict[str, str]:
    """Which file of the earlier commit each one continues: the same path, else one that is gone, of the same name."""
    same = {path: path for path, each in now.items() if path in earlier and _continues(each, earlier[path])}
    moved = {each.name: path for path, each in earlier.items() if path not in same and each.name}
    return same | {path: moved[each.name] for path, each in now.items() if path not in same and each.name in moved}


def _continues(contract: Contract, earlier: Contract) -> bool:
    """What is no schema, now or then, says nothing of another subject."""
    return bool(contract.rule or earlier.rule) or contract.name == earlier.name


def _found(changes: Iterable[Change], path: str, contents: Mapping[str, bytes]) -> list[tuple[str, Contract]]:
    """The versions of a file, oldest first, under the names that it had."""
    found = []
    for change in changes:
        if change.path == path:
            if change.blob:
                where = f"commit {change.commit[:10]} of {change.day}"
                found.append((where, files.parse(path, contents[change.blob])))
            path = change.before
    return found[::-1]


def _folders(path: Path) -> Iterator[Path]:
    yield path
    yield from path.parents


def _is_below(path: str, scope: str) -> bool:
    return scope in (".", path) or path.startswith(f"{scope}/")
