"""Tests that readers always find the last committed manifest of an archive, whatever file system holds the archive.

A *manifest* lists the files of an archive.
"""

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from changelog.connectors.sinks.files.manifest import Manifest, Replaced, parse_manifest, read_manifest
from changelog.envelope.errors import ChangelogError, Kind
from changelog.spark_jobs.storage.hadoop_store import hadoop
from changelog.spark_jobs.storage.local_store import local
from changelog.spark_jobs.storage.manifest import NOTHING, TRIES, ArchiveFile, commit, newest
from changelog.spark_jobs.storage.open_store import store_of
from changelog.spark_jobs.storage.store import FolderStore, StoredFile

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
ONE = ArchiveFile(
    path="archive/entity=order/day=2026-11-21/1.parquet",
    entity="order",
    rows=3,
    first="00000001/0000000000000001/00000000",
    last="00000001/0000000000000001/00000004",
    offsets={"0": (7, 12)},
)


def with_offset(offset: int) -> Callable[[Manifest], Manifest]:
    return lambda before: Manifest(
        format=1, log=before.log, files=(*before.files, ONE), offsets={"booking.order": {"0": offset}}
    )


def test_readers_find_the_last_commit(tmp_path: Path) -> None:
    store = local(tmp_path)
    assert newest(store) is None
    first = commit(store, with_offset(12), at=NOW)
    assert newest(store) == first
    assert (first.at, first.files, first.offsets) == (NOW.isoformat(), (ONE,), {"booking.order": {"0": 12}})
    second = commit(store, with_offset(20), at=NOW)
    assert newest(local(tmp_path)) == second
    assert read_manifest(tmp_path) == second, "the file log's reader must read the manifest, too"
    assert sorted(file.path for file in store.files("")) == ["manifest/1.json", "manifest/2.json"]
    assert second.files[0].day == "2026-11-21"


names = st.text("abc-_9", min_size=1)
files = st.builds(
    ArchiveFile,
    path=st.text(),
    entity=names,
    rows=st.integers(0, 1 << 50),
    first=names,
    last=names,
    offsets=st.dictionaries(names, st.tuples(st.integers(0), st.integers(0)), max_size=3),
)
manifests = st.builds(
    Manifest,
    format=st.just(1),
    log=st.builds(Replaced, first=st.just(1), last=st.integers(0, 1 << 40)),
    files=st.lists(files, max_size=3).map(tuple),
    offsets=st.dictionaries(names, st.dictionaries(names, st.integers(0, 1 << 60), max_size=3), max_size=3),
    at=st.text(),
    writer=st.text(),
)


@given(manifests, st.data())
def test_a_damaged_manifest_is_not_taken_for_a_manifest(manifest: Manifest, data: st.DataObject) -> None:
    text = manifest.to_json()
    assert parse_manifest(text, "here") == manifest
    cut = data.draw(st.integers(0, len(text) - 1))
    assert parse_manifest(text[:cut], "here") is None
    assert parse_manifest(text[:cut] + bytes(len(text) - cut), "here") is None, (
        "a manifest is refused if its last blocks never reached the disk"
    )
    flipped = bytes([text[cut] ^ 1])
    parsed = parse_manifest(text[:cut] + flipped + text[cut + 1 :], "here")
    assert parsed != manifest or cut >= text.rindex(b',"crc32":'), "only damage of the checksum itself can go unnoticed"


@pytest.mark.parametrize("content", [b"", b"{", b'{"format":1,"log":{"first":1,"last":1},"files":[],"crc32":7}'])
def test_a_manifest_that_a_crash_damaged_is_ignored(tmp_path: Path, content: bytes) -> None:
    store = local(tmp_path)
    first = commit(store, with_offset(12), at=NOW)
    store.create("manifest/2.json", content)
    assert newest(store) == first
    assert read_manifest(tmp_path) == first
    third = commit(store, with_offset(20), at=NOW)
    assert newest(store) == third
    assert (tmp_path / "manifest" / "3.json").exists()


def test_a_folder_with_only_damaged_manifests_is_refused(tmp_path: Path) -> None:
    store = local(tmp_path)
    store.create("manifest/1.json", b"{")
    with pytest.raises(ChangelogError, match=r"manifest/1\.json cannot be read; restore it"):
        newest(store)


def test_a_newer_format_is_refused_and_never_skipped(tmp_path: Path) -> None:
    store = local(tmp_path)
    commit(store, with_offset(12), at=NOW)
    store.create("manifest/2.json", b'{"format":2,"parts":[]}')
    readers: list[Callable[[], object]] = [
        lambda: newest(store),
        lambda: read_manifest(tmp_path),
        lambda: commit(store, lambda before: before, at=NOW),
    ]
    for read in readers:
        with pytest.raises(ChangelogError, match=r"has format 2; this program knows only formats up to 1"):
            read()


def test_concurrent_writers_lose_nothing(tmp_path: Path) -> None:
    """Each writer must continue from the commits of the other writers."""

    def add(number: int) -> Callable[[Manifest], Manifest]:
        return lambda before: Manifest(
            format=1, log=before.log, files=before.files, offsets={**before.offsets, str(number): {"0": number}}
        )

    threads = [
        threading.Thread(target=lambda n=n: [commit(local(tmp_path), add(n + k), at=NOW) for k in range(4)])
        for n in range(0, 12, 4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    manifest = newest(local(tmp_path))
    assert manifest is not None
    assert manifest.offsets == {str(number): {"0": number} for number in range(12)}
    assert len(list((tmp_path / "manifest").iterdir())) == 12, "there must be no other files"


class Overwriting:
    """A store in which another writer replaces each file as soon as it is created."""

    def __init__(self, store: FolderStore) -> None:
        self._store = store
        self.root = store.root

    def files(self, folder: str) -> Iterator[StoredFile]:
        return self._store.files(folder)

    def read(self, path: str) -> bytes:
        return self._store.read(path)

    def create(self, path: str, content: bytes) -> bool:
        return self._store.create(path, NOTHING.to_json())

    def move(self, source: str, target: str) -> None:
        raise NotImplementedError

    def delete(self, path: str) -> None:
        raise NotImplementedError


def test_a_writer_whose_manifest_was_overwritten_fails(tmp_path: Path) -> None:
    with pytest.raises(ChangelogError, match="another run writes manifests in file:") as error:
        commit(Overwriting(local(tmp_path)), with_offset(12), at=NOW)
    assert error.value.kind is Kind.IN_USE


def test_a_refused_change_commits_nothing(tmp_path: Path) -> None:
    def refuse(_: Manifest) -> Manifest:
        raise ChangelogError(Kind.IN_USE, "another run was here")

    with pytest.raises(ChangelogError, match="another run was here"):
        commit(local(tmp_path), refuse, at=NOW)
    assert not (tmp_path / "manifest").exists()
    assert TRIES > 1


@pytest.mark.parametrize(
    ("text", "root"),
    [
        ("/a b/c", "file:/a b/c"),
        ("file:/a//b", "file:/a/b"),
        ("file:///a/b/", "file:/a/b"),
        (Path("/a/s3:x"), "file:/a/s3:x"),
    ],
)
def test_paths_of_this_machine_need_no_spark_session(text: str | Path, root: str) -> None:
    assert store_of(text).root == root


def test_other_file_systems_need_a_session() -> None:
    with pytest.raises(ChangelogError, match="only with a Spark session"):
        store_of("s3a://bucket/changelog")


def test_a_hadoop_store_can_commit_by_renaming(spark: SparkSession, tmp_path: Path) -> None:
    """Uses Hadoop's file system `viewfs` over a local folder. There, a rename replaces an existing file; on the file
    system of a cluster, such a rename fails.
    """
    spark._jsc.hadoopConfiguration().set("fs.viewfs.mounttable.try.link./lake", f"file:{tmp_path}")
    store = hadoop(spark, "viewfs://try/lake")
    committed = [commit(store, with_offset(offset), at=NOW) for offset in (12, 20)]
    assert newest(store) == committed[-1] == read_manifest(tmp_path)
    with pytest.raises(Py4JError):
        store.create("manifest/3.json", "no bytes")  # type: ignore[arg-type]
    assert newest(store) == committed[-1]
    assert not list(tmp_path.rglob(".changelog-*"))


def test_a_hadoop_store_behaves_like_a_local_folder(spark: SparkSession, tmp_path: Path) -> None:
    """The store uses Hadoop's own file system for local folders, and must do the same as `local`."""
    store = hadoop(spark, f"file:{tmp_path}")
    assert list(store.files("manifest")) == []
    assert newest(store) is None
    committed = [commit(store, with_offset(offset), at=NOW) for offset in (12, 20)]
    assert newest(store) == committed[-1] == read_manifest(tmp_path)
    assert not store.create("manifest/2.json", b"other")
    assert newest(store) == committed[-1]

    staged = "archive/.staging/x y/part.parquet"
    assert store.create(staged, bytes(range(256)))
    store.move(staged, "archive/entity=order/day=2026-11-21/1.parquet")
    assert store.read("archive/entity=order/day=2026-11-21/1.parquet") == bytes(range(256))
    by_hadoop = {file.path: file.modified_s for file in store.files("archive")}
    by_path = {
        file.path: file.modified_s for file in local(tmp_path).files("archive") if not file.path.endswith(".crc")
    }
    assert by_hadoop.keys() == by_path.keys() == {"archive/entity=order/day=2026-11-21/1.parquet"}
    store.delete("archive")
    assert list(store.files("archive")) == []
    with pytest.raises(ChangelogError, match="FileNotFound") as error:
        store.read("archive/x.parquet")
    assert "\n" not in str(error.value)
