"""Reads earlier versions of schema files from the history of a git repository."""

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
"""The possible names of the main branch, in the order in which they are tried."""

ELSEWHERE = "say --against DIR or registry:URL"

_CONFIG = ("-c", "core.quotepath=off", "-c", "color.ui=false", "-c", "log.showSignature=false")
_ALL = f":(top,glob)**/*{files.SUFFIX}"

_OF_A_HOOK = ("GIT_DIR", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_WORK_TREE")
"""Environment variables that git sets for its hooks.

They are removed for our calls of git, because some of them hold paths that are relative to another working folder.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """A change of a file by a commit.

    `day` is the date of the commit (ISO 8601). `path` is the file's path after the commit, and `before` its path before
    the commit. `blob` is the id of the new content, None if the commit deleted the file.
    """

    commit: str
    day: str
    path: str
    before: str
    blob: str | None


class Repository:
    """The repository that contains a folder. Every method raises ChangelogError (PRECONDITION) if git fails.

    The constructor raises PRECONDITION if no repository contains the folder, or if git is not installed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.root = Path(self._git("rev-parse", "--show-toplevel").rstrip("\n"))

    def commit(self, ref: str) -> str:
        """Returns the id of the commit that `ref` names. Raises ChangelogError (USAGE) if there is no such commit."""
        commit = self._resolve(ref)
        if commit is None:
            raise ChangelogError(Kind.USAGE, f"git has no commit {ref}", hint=f"fetch it, or {ELSEWHERE}")
        return commit

    def base(self) -> tuple[str, str]:
        """Returns the id of the commit at which HEAD left the main branch, and the name of the main branch.

        Raises ChangelogError (PRECONDITION) if there is no main branch, or if it has no common commit with HEAD.
        """
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
            raise ChangelogError(Kind.PRECONDITION, f"HEAD and {main} have no common commit", hint=hint) from error

    @cached_property
    def is_shallow(self) -> bool:
        """Whether the clone is shallow: older commits were not fetched."""
        return self._git("rev-parse", "--is-shallow-repository").strip() == "true"

    def path(self, file: Path) -> str:
        """Returns the path of a file within the repository. Raises USAGE if the file is outside the repository."""
        real_path = Path(os.path.realpath(file.parent)) / file.name
        try:
            return real_path.relative_to(os.path.realpath(self.root)).as_posix()
        except ValueError:
            raise ChangelogError(
                Kind.USAGE, f"the file {file} is not in the repository {self.root}", hint=ELSEWHERE
            ) from None

    def tree(self, commit: str) -> dict[str, str]:
        """Returns the schema files of a commit: the id of each file's content, by the file's path."""
        blobs = {}
        for entry in self._git("ls-tree", "-r", "-z", "--full-tree", commit).split("\0"):
            attributes, _, path = entry.partition("\t")
            if path.endswith(files.SUFFIX) and attributes.split()[1] == "blob":
                blobs[path] = attributes.split()[2]
        return blobs

    def changes(self, commit: str) -> list[FileChange]:
        """Returns the changes of schema files on the main line up to a commit, newest first.

        The main line follows the first parent of each commit. The commits of a merged branch do not count one by one:
        the merge commit counts as a single change of each file. Nothing was published with the schemas that the branch
        had before its merge.
        """
        changes = []
        format_ = "--format=%x01%H %cs"
        log = self._git(
            *("log", "--first-parent", "-m", "-M", "--raw", "--no-abbrev", "-z", format_, commit, "--", _ALL)
        )
        fields = iter(log.split("\0"))
        for field in fields:
            field = field.removeprefix("\n")
            if field.startswith("\1"):
                name, day = field[1:].split()
            elif field:
                *_, blob, status = field.split()
                old_path = next(fields)
                path = next(fields) if status[0] in "RC" else old_path
                is_there = blob.strip("0") != ""
                changes.append(
                    FileChange(commit=name, day=day, path=path, before=old_path, blob=blob if is_there else None)
                )
        return changes

    def contents(self, blobs: Collection[str]) -> dict[str, bytes]:
        """Returns the content of each blob, by the blob's id."""
        if not blobs:
            return {}
        output = self._run("cat-file", "--batch", stdin="".join(f"{blob}\n" for blob in blobs).encode())
        contents, offset = {}, 0
        while offset < len(output):
            end = output.index(b"\n", offset)
            blob, _, size = output[offset:end].decode().split()
            contents[blob] = output[end + 1 : end + 1 + int(size)]
            offset = end + 2 + int(size)
        return contents

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
            process = subprocess.run(
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
        if process.returncode:
            raise self._error(process.stderr.decode(errors="replace"))
        return process.stdout

    def _error(self, stderr: str) -> ChangelogError:
        if "not a git repository" in stderr:
            return ChangelogError(
                Kind.PRECONDITION,
                f"the folder {self._folder} is not in a git repository",
                hint=f"git init, or {ELSEWHERE}",
            )
        line = next(iter(stderr.splitlines()), "it failed").removeprefix("fatal: ")
        return ChangelogError(Kind.PRECONDITION, f"git: {line}", hint=f"correct that, or {ELSEWHERE}")


def in_git(contracts: Sequence[Contract], paths: Sequence[Path], ref: str) -> Earlier:
    """Reads all versions of the files of `contracts` on the main line up to the commit `ref`.

    If `ref` is empty, reads up to the commit at which HEAD left the main branch. The result's `removed` has each file
    that is below `paths` in that commit, and that no file of `contracts` continues (`_origins` says what that means).
    Raises ChangelogError: PRECONDITION if git cannot answer, and USAGE if there is no such commit or a path is outside
    the repository.
    """
    repository = Repository(next((folder for folder in _folders(paths[0]) if folder.is_dir()), Path()))
    commit, branch = (repository.commit(ref), ref) if ref else repository.base()
    tree, changes = repository.tree(commit), repository.changes(commit)
    contract_by_path = {repository.path(Path(contract.file)): contract for contract in contracts}
    contents = repository.contents({*tree.values(), *(change.blob for change in changes if change.blob)})
    earlier = {path: files.parse(path, contents[blob]) for path, blob in tree.items()}
    origins = _origins(contract_by_path, earlier)
    pasts = {
        contract.file: past(contract, _versions_of(changes, origins.get(path, path), contents))
        for path, contract in contract_by_path.items()
        if not contract.rule
    }
    scopes = [repository.path(path) for path in paths]
    removed_paths = earlier.keys() - origins.values()
    removed = tuple(
        Contract(file=os.path.relpath(repository.root / path), text=contract.text, schema=contract.schema)
        for path, contract in sorted(earlier.items())
        if path in removed_paths and not contract.rule and any(_is_below(path, scope) for scope in scopes)
    )
    notes = ("the clone is shallow: versions before its first commit were not compared",) * repository.is_shallow
    return Earlier(against=f"git:{branch} ({commit[:7]})", pasts=pasts, removed=removed, notes=notes)


def _origins(contract_by_path: Mapping[str, Contract], earlier: Mapping[str, Contract]) -> dict[str, str]:
    """Returns a mapping of each file's path to the path of the earlier file that it continues.

    A file continues the earlier file at the same path, if both have the same schema name or one of them is invalid.
    Otherwise, the file may have been moved: then it continues the earlier file with the same schema name at another
    path. But if the file that is now at that other path continues the earlier one, nothing was moved, and the file is
    new.
    """
    same_paths = {
        path: path
        for path, contract in contract_by_path.items()
        if path in earlier and _continues(contract, earlier[path])
    }
    path_by_name = {
        contract.name: path for path, contract in earlier.items() if path not in same_paths and contract.name
    }
    return same_paths | {
        path: path_by_name[contract.name]
        for path, contract in contract_by_path.items()
        if path not in same_paths and contract.name in path_by_name
    }


def _continues(contract: Contract, earlier: Contract) -> bool:
    """Returns whether two files at the same path have the same schema name, or one of the files is invalid."""
    return bool(contract.rule or earlier.rule) or contract.name == earlier.name


def _versions_of(changes: Iterable[FileChange], path: str, contents: Mapping[str, bytes]) -> list[tuple[str, Contract]]:
    """Returns the versions of a file, oldest first, including the versions from before it was renamed.

    `changes` are newest first. Each version is a pair: a text that names its commit, and its content.
    """
    versions = []
    for change in changes:
        if change.path == path:
            if change.blob:
                where = f"commit {change.commit[:10]} of {change.day}"
                versions.append((where, files.parse(path, contents[change.blob])))
            path = change.before
    return versions[::-1]


def _folders(path: Path) -> Iterator[Path]:
    yield path
    yield from path.parents


def _is_below(path: str, scope: str) -> bool:
    return scope in (".", path) or path.startswith(f"{scope}/")
