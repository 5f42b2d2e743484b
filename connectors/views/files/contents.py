"""Keeps track of a changelog's files: their list, the index of the tail (the changes that are not archived yet), and
how far the changelog is complete.
"""

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from changelog.connectors.sinks.files.layout import (
    NotWholeError,
    Resume,
    log_file,
    read_checkpoint_of,
    read_resume,
    refuse_holes,
    resume_file,
    sequences,
)
from changelog.connectors.sinks.files.manifest import ArchiveFile, Manifest, manifest_number, read_manifest
from changelog.connectors.views.files.row_groups import DAMAGED, RowGroups
from changelog.connectors.views.files.tail import Tail
from changelog.connectors.views.served import Completeness
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position
from changelog.envelope.service_choice import ALL_SERVICES, ServiceChoice

_Signature = tuple[int, int]
"""The inode of a file, and when it was changed, in nanoseconds. If a file is replaced, its signature changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What the files hold at one moment.

    `number` is the number of the manifest, 0 if there is none, and `archive` has the manifest's files by entity.
    `checkpoint` is the service's checkpoint; an archive of topics has none. `at_s` is when a service or a job last
    stored something, in seconds since 1970. `groups` reads row groups of these files, and keeps those that were used
    last. `signature` is the signature of the log's newest file, None if there is no such file.
    """

    number: int
    manifest: Manifest | None
    archive: Mapping[str, Sequence[ArchiveFile]]
    tail: Tail
    checkpoint: Checkpoint | None
    at_s: float | None
    groups: RowGroups
    signature: _Signature | None

    def reached(self, entity: str) -> Completeness:
        """Returns how far the states of an entity are complete."""
        if self.checkpoint is not None:
            return Completeness(position=self.checkpoint.reached, at_s=self.at_s)
        complete = self.manifest.complete.get(entity) if self.manifest else None
        return Completeness(position=Position.parse(complete) if complete else None, at_s=self.at_s)


@dataclass(slots=True)
class ChangelogFiles:
    """The files of the changelog in the folder `path`. Any thread may call its methods.

    The tail has only the changes that `services` includes; the archive has all.
    """

    path: Path
    services: ServiceChoice = ALL_SERVICES
    _contents: Contents | None = None
    _newest: tuple[int, Checkpoint | None] = (0, None)
    _resume: tuple[_Signature | None, Resume | None] = (None, None)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def now(self) -> Contents:
        """Returns what the files hold now. Reads only files that are new since the last call.

        Raises ChangelogError: PRECONDITION if there is no changelog yet, or if the tail is too large; MALFORMED if a
        file is missing or damaged.
        """
        failed_number: int | None = None
        with self._lock:
            while True:
                number = self.manifest_number()
                try:
                    self._contents = self._refreshed(number)
                except ChangelogError:  # the archive may have replaced files while they were read
                    if number == failed_number:
                        raise
                    failed_number = number
                else:
                    return self._contents

    def manifest_number(self) -> int:
        """Returns the number of the newest manifest, 0 if there is none."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return max((manifest_number(file.name) or 0 for file in (self.path / "manifest").iterdir()), default=0)
        return 0

    def _refreshed(self, number: int) -> Contents:
        earlier = self._contents
        if earlier is not None and earlier.number == number:
            manifest, archive = earlier.manifest, earlier.archive
        else:
            manifest = read_manifest(self.path)
            archive = _by_entity(manifest)
        archived = manifest.log.last if manifest else 0
        if earlier is not None and not _continues(self.path, earlier, archived):
            earlier, self._newest = None, (0, None)
        tail = self._tail(earlier, archived)
        checkpoint, at_s = self._checkpoint(tail.last)
        if checkpoint is None and manifest is None:
            raise ChangelogError(
                Kind.PRECONDITION,
                f"the changelog in {self.path} is empty",
                hint="start the service: `changelog run`",
            )
        if at_s is None and manifest is not None and manifest.at:
            at_s = datetime.fromisoformat(manifest.at).timestamp()
        return Contents(
            number=number,
            manifest=manifest,
            archive=archive,
            tail=tail,
            checkpoint=checkpoint,
            at_s=at_s,
            groups=earlier.groups if earlier else RowGroups(),
            signature=_signature(log_file(self.path, tail.last)),
        )

    def _tail(self, earlier: Contents | None, archived: int) -> Tail:
        """Returns the index of the tail, with all files that the log has now."""
        if earlier is not None:
            archived_before = earlier.manifest.log.last if earlier.manifest else 0
            tail = earlier.tail if archived == archived_before else earlier.tail.after(archived)
            end = tail.last + 1
            while log_file(self.path, end).exists():
                end += 1
            return tail.add_files(self.path, range(tail.last + 1, end))
        present_sequences = sequences(self.path)
        refuse_holes(self.path, present_sequences, archived)
        live = [sequence for sequence in present_sequences if sequence > archived]
        return Tail(last=archived, services=self.services).add_files(self.path, live)

    def _checkpoint(self, last: int) -> tuple[Checkpoint | None, float | None]:
        """Returns the newest checkpoint, and when it was stored. `last` is the sequence of the newest file."""
        file = log_file(self.path, last)
        if last and self._newest[0] != last:
            try:
                self._newest = last, read_checkpoint_of(file)
            except NotWholeError as damage:
                raise damage.error(DAMAGED) from damage
        checkpoint = self._newest[1] if self._newest[0] == last else None
        resume = self._read_resume()
        if resume is not None and resume.sequence == last:
            checkpoint = resume.checkpoint
        signatures = filter(None, (_signature(file), _signature(resume_file(self.path))))
        return checkpoint, max((changed_ns / 1e9 for _, changed_ns in signatures), default=None)

    def _read_resume(self) -> Resume | None:
        """Returns the resume record. Reads its file only if the file has been replaced since the last call."""
        signature = _signature(resume_file(self.path))
        if self._resume[0] != signature:
            self._resume = signature, read_resume(self.path)
        return self._resume[1]


def _continues(path: Path, earlier: Contents, archived: int) -> bool:
    """Returns whether the log is still the one that was indexed. If the log was deleted and begun again, the newest
    indexed file is missing, or another file has its name.
    """
    return earlier.tail.last <= archived or _signature(log_file(path, earlier.tail.last)) == earlier.signature


def _signature(file: Path) -> _Signature | None:
    try:
        status = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_ino, status.st_mtime_ns


def _by_entity(manifest: Manifest | None) -> Mapping[str, Sequence[ArchiveFile]]:
    files: dict[str, list[ArchiveFile]] = {}
    for file in manifest.files if manifest else ():
        files.setdefault(file.entity, []).append(file)
    return files
