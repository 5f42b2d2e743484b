"""Deletes the files of an archive that no reader needs any more."""

from collections.abc import Mapping
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

from changelog.connectors.sinks.files.layout import log_file, sequences
from changelog.spark_jobs.archiving.retention import KEPT
from changelog.spark_jobs.archiving.write_files import ArchiveRun
from changelog.spark_jobs.storage.manifest import ARCHIVE, FOLDER, number_of, path_of, read


def clear(run: ArchiveRun, *, grace: timedelta, log: Path | None = None) -> int:
    """Deletes files that no reader needs any more; returns their number.

    A manifest lists the files of the archive, and a reader uses the manifest that is the newest when the reader begins.
    A manifest is deleted when the next manifest is older than `grace`: all readers of the deleted manifest began before
    the next one was written, so they have had at least `grace` to finish. A file that no remaining manifest lists, such
    as a file of a killed run, is deleted if it is older than `grace`. `log` is the folder of a file log, if there is
    one. A file of the log is deleted under two conditions: every remaining manifest says that the archive has the
    file's rows, and the oldest of these manifests is older than `grace`. The newest `KEPT` files of the log always
    stay.
    """
    store, expired_before_s = run.store, (run.at - grace).timestamp()
    manifests = list(store.files(FOLDER))
    written_s = {number: file.modified_s for file in manifests if (number := number_of(file.path)) is not None}
    readable = {number: manifest for number in written_s if (manifest := read(store, path_of(number))) is not None}
    if not readable:
        return 0
    numbers_in_use = _in_use({number: written_s[number] for number in readable}, expired_before_s)
    paths_in_use = {file.path for number in numbers_in_use for file in readable[number].files} | {
        path_of(number) for number in numbers_in_use
    }
    paths_to_delete = [path_of(number) for number in readable.keys() - numbers_in_use]
    other_files = [
        file for file in (*manifests, *store.files(ARCHIVE)) if file.path not in (paths_in_use | set(paths_to_delete))
    ]
    paths_to_delete += [file.path for file in other_files if file.modified_s < expired_before_s]
    if log is not None:
        # Readers that began before the oldest remaining manifest was written may still read all files of the log.
        is_old = written_s[min(numbers_in_use)] < expired_before_s
        archived = min(readable[number].log.last for number in numbers_in_use) if is_old else 0
        paths_to_delete += [f"log/{log_file(log, file).name}" for file in sequences(log)[:-KEPT] if file <= archived]
    for path in paths_to_delete:
        store.delete(path)
    run.reach("archive:cleared")
    return len(paths_to_delete)


def _in_use(written_s: Mapping[int, float], expired_before_s: float) -> set[int]:
    """Returns the numbers of the manifests that may still have readers. These are the newest manifest, and each
    manifest for which the next manifest was written at `expired_before_s` or later.
    """
    ordered = sorted(written_s)
    recent = (number for number, following in pairwise(ordered) if written_s[following] >= expired_before_s)
    return {ordered[-1], *recent}
