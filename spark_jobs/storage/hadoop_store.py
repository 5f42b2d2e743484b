"""A store on any file system that Hadoop reaches: HDFS, S3, Azure and others."""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from changelog.envelope.errors import ChangelogError, Kind
from changelog.spark_jobs.runner import spark_errors
from changelog.spark_jobs.storage.local_store import BESIDE
from changelog.spark_jobs.storage.store import Store, StoredFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONDITIONAL = "fs.option.create.conditional.overwrite"


_RENAMING = ("hdfs", "webhdfs", "viewfs", "abfs", "abfss")
"""File systems whose rename is atomic and never overwrites, but where a new file is visible before it is complete."""


def hadoop(spark: "SparkSession", root: str) -> Store:
    """The store at a URI of any file system that Spark has."""
    return _HadoopStore(spark, root.rstrip("/"))


class _HadoopStore:
    """A store on Hadoop's FileSystem. How it creates a file without overwriting one depends on the file system."""

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
            top = len(self._fs.makeQualified(self._path("")).toString().rstrip("/")) + 1
            listed = self._fs.listFiles(base, True)
            while listed.hasNext():
                status = listed.next()
                yield StoredFile(path=status.getPath().toString()[top:], modified_s=status.getModificationTime() / 1000)

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
        """Writes a temporary file, then renames it, so that no reader ever sees a partly written one."""
        beside = self._jvm.org.apache.hadoop.fs.Path(target.getParent(), f"{BESIDE}{secrets.token_hex(8)}")
        with ExitStack() as undo:
            undo.callback(self._drop, beside)
            with closing(self._fs.create(beside, False)) as stream:
                stream.write(content)
            if self._fs.rename(beside, target):
                undo.pop_all()  # it is in place
                return True
        if self._fs.exists(target):
            return False
        raise ChangelogError(Kind.STORAGE, f"{target.toString()}: cannot be moved there")

    def _drop(self, beside: Any) -> None:
        with suppress(Exception):  # the first error is the one to report
            self._fs.delete(beside, False)

    def move(self, source: str, target: str) -> None:
        after = self._path(target)
        with _java(f"{self.root}/{target}"):
            self._fs.mkdirs(after.getParent())
            if not self._fs.rename(self._path(source), after):
                raise ChangelogError(Kind.STORAGE, f"{self.root}/{target}: cannot be moved there")

    def delete(self, path: str) -> None:
        with _java(f"{self.root}/{path}"):
            self._fs.delete(self._path(path), True)

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.root}/{path}" if path else self.root)

    def _created(self, target: Any) -> Any:
        """Opens a stream to a new file. An existing file is refused: on closing if the file system can, else here."""
        if self._fs.hasPathCapability(target, _CONDITIONAL):
            return self._fs.createFile(target).create().overwrite(True).must(_CONDITIONAL, True).build()
        return self._fs.create(target, False)


@contextmanager
def _java(where: str) -> Iterator[None]:
    """Translates an error of Hadoop into one line."""
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
    """Whether the error means that the file exists already."""
    java = getattr(error, "java_exception", None)
    return java is not None and any(word in str(java.toString()) for word in _REFUSALS)
