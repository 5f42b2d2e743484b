"""Implements a store (a folder of a job's files) on any file system of Hadoop: HDFS, S3, Azure and others."""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from changelog.envelope.errors import ChangelogError, Kind
from changelog.spark_jobs.runner import spark_errors
from changelog.spark_jobs.storage.local_store import TEMPORARY
from changelog.spark_jobs.storage.store import FolderStore, StoredFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONDITIONAL = "fs.option.create.conditional.overwrite"
"""What Hadoop calls the ability of a file system to create a file only if there is none at its path yet."""

_RENAMING = ("hdfs", "webhdfs", "viewfs", "abfs", "abfss")
"""File systems on which a new file is visible before it is complete, but a rename is atomic and never overwrites a
file.
"""


def hadoop(spark: "SparkSession", root: str) -> FolderStore:
    """Returns the store at a URI of any file system that Spark supports."""
    return _HadoopStore(spark, root.rstrip("/"))


class _HadoopStore:
    """A store on a file system of Hadoop. How it creates a file without overwriting another depends on this system."""

    def __init__(self, spark: "SparkSession", root: str) -> None:
        self.root = root
        self._jvm: Any = spark._jvm
        configuration = spark._jsc.hadoopConfiguration()
        with _java(root):
            self._fs = self._path("").getFileSystem(configuration)

    def files(self, folder: str) -> Iterator[StoredFile]:
        base = self._path(folder)
        with _java(self.root):
            if not self._fs.exists(base):
                return
            root_length = len(self._fs.makeQualified(self._path("")).toString().rstrip("/")) + 1
            statuses = self._fs.listFiles(base, True)
            while statuses.hasNext():
                status = statuses.next()
                path = status.getPath().toString()[root_length:]
                yield StoredFile(path=path, modified_s=status.getModificationTime() / 1000)

    def read(self, path: str) -> bytes:
        with _java(f"{self.root}/{path}"):
            stream = self._fs.open(self._path(path))
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

    def create(self, path: str, content: bytes) -> bool:
        target = self._path(path)
        with _java(f"{self.root}/{path}"):
            if self._fs.getUri().getScheme() in _RENAMING:
                return self._put(target, content)
            try:
                stream = self._created(target)
                stream.write(content)
                stream.close()
            except Exception as error:
                if self._fs.exists(target) and _is_refusal(error):
                    return False
                raise
        return True

    def _put(self, target: Any, content: bytes) -> bool:
        """Writes a temporary file, then renames it, so that no reader ever sees a partly written file."""
        temporary = self._jvm.org.apache.hadoop.fs.Path(target.getParent(), f"{TEMPORARY}{secrets.token_hex(8)}")
        with ExitStack() as undo:
            undo.callback(self._drop, temporary)
            with closing(self._fs.create(temporary, False)) as stream:
                stream.write(content)
            if self._fs.rename(temporary, target):
                undo.pop_all()  # nothing to undo: the temporary file is now the target
                return True
        if self._fs.exists(target):
            return False
        raise ChangelogError(Kind.STORAGE, f"{target.toString()}: no file can be moved to this path")

    def _drop(self, temporary: Any) -> None:
        with suppress(Exception):  # an error here would hide the first one
            self._fs.delete(temporary, False)

    def move(self, source: str, target: str) -> None:
        after = self._path(target)
        with _java(f"{self.root}/{target}"):
            self._fs.mkdirs(after.getParent())
            if not self._fs.rename(self._path(source), after):
                raise ChangelogError(Kind.STORAGE, f"{self.root}/{target}: no file can be moved to this path")

    def delete(self, path: str) -> None:
        with _java(f"{self.root}/{path}"):
            self._fs.delete(self._path(path), True)

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.root}/{path}" if path else self.root)

    def _created(self, target: Any) -> Any:
        """Opens a stream to a new file. If the file exists already, this call fails. On file systems with the ability
        `_CONDITIONAL`, this call succeeds even then, and the stream's `close` fails.
        """
        if self._fs.hasPathCapability(target, _CONDITIONAL):
            return self._fs.createFile(target).create().overwrite(True).must(_CONDITIONAL, True).build()
        return self._fs.create(target, False)


@contextmanager
def _java(where: str) -> Iterator[None]:
    """Turns an error of Hadoop into a ChangelogError of one line. The line begins with `where`, unless Hadoop's own
    text names a path.
    """
    try:
        yield
    except Exception as error:
        java = getattr(error, "java_exception", None)
        if java is None:
            raise
        first = str(java.toString()).partition("\n")[0]
        raise spark_errors.known(str(error), where) or ChangelogError(Kind.STORAGE, f"{where}: {first}") from error


_REFUSALS = ("FileAlreadyExists", "AlreadyBeingCreated", "RemoteFileChanged", "PreconditionFailed", "412")


def _is_refusal(error: BaseException) -> bool:
    """Returns whether an error means that the file exists already."""
    java = getattr(error, "java_exception", None)
    return java is not None and any(word in str(java.toString()) for word in _REFUSALS)
