"""Translates Spark's errors to ChangelogErrors: one line each, without Java stack traces and values of rows."""

import os
import re
from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import unquote

from changelog.envelope.errors import ChangelogError, Kind

PACKAGES: Mapping[str, str] = MappingProxyType(
    {
        "kafka": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",
        "delta": "io.delta:delta-spark_2.13:4.0.1",
        "jdbc": "org.postgresql:postgresql:42.7.14",
        "s3a": "org.apache.hadoop:hadoop-aws:3.4.1",
        "abfs": "org.apache.hadoop:hadoop-azure:3.4.1",
    }
)
"""The packages for Spark's data sources and file systems, as `spark-submit --packages` takes them."""

_OURS = re.compile(r"\bChangelogError: (.+)")
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]")

_NO_RIGHT = (Kind.ACCESS, "the job's user may not read or write {what}", "change its permissions, or name another path")

# Each entry has a pattern for the text of Spark's error, and the kind, the message and the hint of our error. The first
# pattern that matches decides. The text of an error includes the messages of its causes.
_KNOWN = [
    (
        r"JAVA_GATEWAY_EXITED|JAVA_HOME is not set",
        Kind.USAGE,
        "Spark found no Java to run",
        "install Java 17 (Debian: apt-get install openjdk-17-jre-headless)",
    ),
    (
        r'IOException: Cannot run program "(?P<what>[^"\n]*python[^"\n]*)"[^\n]*error=(?:2|13)\b',
        Kind.USAGE,
        "Spark cannot run {what}",
        "set PYSPARK_PYTHON to a path where every node has a Python that the job's user may run",
    ),
    (
        r"NoAuthWithAWSException|No AWS Credentials provided",
        Kind.ACCESS,
        "S3 has no credentials",
        "see fs.s3a.aws.credentials.provider in Hadoop's documentation of S3A",
    ),
    (r"FileNotFoundException: (?P<what>/[^\n]+?) \(Permission denied\)", *_NO_RIGHT),
    (r'AccessControlException: Permission denied[^\n]*inode="(?P<what>[^"\n]+)"', *_NO_RIGHT),
    (r"AccessDeniedException: (?P<what>(?:[a-z0-9]+:/)?/[^\n]+?)(?:: |$)", *_NO_RIGHT),
    (
        r"ParentNotDirectoryException: (?:Parent path is not a directory: )?(?P<what>[^\n]+?)(?: \(is not [^\n]*)?$",
        Kind.STORAGE,
        "{what} is a file",
        "name a folder",
    ),
    (
        r"IOException: Mkdirs failed to create (?P<what>[^\n]+?)(?:/_temporary[^\n]*)?(?: \(exists=[^\n]*)?$",
        Kind.STORAGE,
        "{what} cannot be created",
        "give the job's user the right to write there",
    ),
    (
        r"FAILED_READ_FILE\.FILE_NOT_EXIST[^\n]*?(?P<uri>(?:file|hdfs|s3a|abfss?|gs):[^\s,]+?)\.?(?:[\s,]|$)",
        Kind.MALFORMED,
        "{what} is gone",
        "run the job again, because compaction may have replaced the file; if it is still gone, restore it from a copy",
    ),
    (
        r"(?:FAILED_READ_FILE|CANNOT_READ_FILE_FOOTER)[^\n]*?(?P<uri>(?:file|hdfs|s3a|abfss?|gs):[^\s,]+?)\.?(?:[\s,]|$)",
        Kind.MALFORMED,
        "{what} is damaged",
        "restore it from a copy",
    ),
    (r"PATH_NOT_FOUND[^\n]*?: (?P<what>\S+?)\.? SQLSTATE", Kind.USAGE, "{what} does not exist", "check the path"),
    (
        r"(?:Failed to find (?:the )?data source: |DATA_SOURCE_NOT_FOUND\D*?source: )(?P<what>kafka|delta|jdbc)",
        Kind.USAGE,
        "Spark has no {what}",
        "add to spark-submit: --packages {package}",
    ),
    (
        r"Class org\.apache\.hadoop\.fs\.s3a\.S3AFileSystem not found",
        Kind.USAGE,
        "Spark lacks the file system s3a",
        f"add to spark-submit: --packages {PACKAGES['s3a']}",
    ),
    (
        r"Class org\.apache\.hadoop\.fs\.azurebfs\.\w+FileSystem not found",
        Kind.USAGE,
        "Spark lacks the file system abfs",
        f"add to spark-submit: --packages {PACKAGES['abfs']}",
    ),
    (
        r'No FileSystem for scheme "(?P<what>[^"\n]+)"',
        Kind.USAGE,
        "Spark knows no file system {what}",
        "leave the scheme out for a folder of this machine",
    ),
    (
        r"No suitable driver",
        Kind.USAGE,
        "Spark finds no driver for this JDBC URL",
        "name the driver's class in the option `driver`, and add its jar to spark-submit: --packages",
    ),
    (
        r"ClassNotFoundException: org\.postgresql",
        Kind.USAGE,
        "Spark has no driver for PostgreSQL",
        f"add to spark-submit: --packages {PACKAGES['jdbc']}",
    ),
    (
        r"UnknownTopicOrPartitionException",
        Kind.USAGE,
        "Kafka has no such topic",
        "check the entities and the prefix in the configuration",
    ),
    (
        r"(?:TopicAuthorization|SaslAuthentication|GroupAuthorization|ClusterAuthorization)Exception",
        Kind.ACCESS,
        "Kafka refuses this client",
        "check `client` in [sink] and the rights of its user",
    ),
    (
        r"org\.apache\.kafka\.common\.errors\.(?:Timeout|Disconnect|Network)Exception|No resolvable bootstrap urls",
        Kind.CONNECTION,
        "Kafka does not answer",
        "check that it runs, and that `bootstrap_servers` in [sink] is its address",
    ),
    (
        r"some data may have been lost|OffsetOutOfRangeException|KAFKA_DATA_LOSS",
        Kind.GAP,
        "history lost: Kafka no longer has the messages to be read next",
        "start again with an empty output, and let topics retain more than an outage lasts (docs/reference/kafka.md)",
    ),
    (
        r"Failed to create a temp directory \(under artifacts\)",
        Kind.STORAGE,
        "Spark cannot create its folder `artifacts` in the working directory",
        "run the job from a folder that its user may write to",
    ),
    (
        r"No space left on device",
        Kind.STORAGE,
        "no space left on a device",
        "free some space where the job writes, or move Spark's temporary folder: --conf spark.local.dir=PATH",
    ),
    (r"OutOfMemoryError", Kind.LIMIT, "Spark ran out of memory", "add to spark-submit: --driver-memory 4g"),
]
_TABLE = [(re.compile(pattern, re.MULTILINE), kind, message, hint) for pattern, kind, message, hint in _KNOWN]


def explain(error: Exception) -> ChangelogError:
    """Returns the ChangelogError that is shown for an error. A ChangelogError is returned unchanged.

    For an unknown error, the message has only the error's type, because the error's text may contain values of rows.
    """
    if isinstance(error, ChangelogError):
        return error
    if type(error).__module__.partition(".")[0] in ("pyspark", "py4j"):
        return _of_spark(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return ChangelogError(
            Kind.STORAGE, f"{where}{os.strerror(error.errno) if error.errno else type(error).__name__}"
        )
    return ChangelogError(
        Kind.MALFORMED,
        f"internal error ({type(error).__name__})",
        hint="repeat with --verbose and report the traceback",
    )


def _of_spark(error: Exception) -> ChangelogError:
    text = str(error)
    ours = _OURS.search(text)  # a ChangelogError of an executor arrives as text, within a traceback
    if ours:
        return ChangelogError(Kind.MALFORMED, ours[1].strip())
    condition = _CONDITION.search(text)
    name = condition[1] if condition else type(error).__name__
    hint = "repeat with --verbose to see Spark's own message"
    return known(text) or ChangelogError(Kind.MALFORMED, f"Spark failed ({name})", hint=hint)


def known(text: str, where: str = "") -> ChangelogError | None:
    """Returns the ChangelogError for a Java error with this text; None if no pattern matches.

    The message of the result begins with `where`, unless `text` itself names a path or a data source.
    """
    for pattern, kind, message, hint in _TABLE:
        match = pattern.search(text)
        if match:
            groups = match.groupdict()
            what = unquote(groups["uri"]) if "uri" in groups else groups.get("what", "")
            text_of_error = message.format(what=re.sub("^file:/+", "/", what))
            hint = hint.format(package=PACKAGES.get(what, ""))
            return ChangelogError(kind, f"{where}: {text_of_error}" if where and not what else text_of_error, hint=hint)
    return None
