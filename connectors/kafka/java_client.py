"""Translates the configured options for librdkafka into options for Kafka's Java client.

Spark and Kafka Streams use the Java client.

https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md · https://kafka.apache.org/41/configuration/
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from changelog.envelope.errors import ChangelogError, Kind

_SAME = frozenset({"client.id", "sasl.kerberos.service.name", "security.protocol"})
_RENAMED = {
    "sasl.mechanism": "sasl.mechanism",
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.key.password": "ssl.key.password",
    "ssl.cipher.suites": "ssl.cipher.suites",
}
# Each of these options is the path of a file. The Java client gets the file's text instead, because it may run on a
# machine of Spark (an executor) that lacks the file.
_PEM = {
    "ssl.ca.location": ("ssl.truststore.type", "ssl.truststore.certificates"),
    "ssl.certificate.location": ("ssl.keystore.type", "ssl.keystore.certificate.chain"),
    "ssl.key.location": ("ssl.keystore.type", "ssl.keystore.key"),
}
_MODULES = {"PLAIN": "plain.PlainLoginModule"}
_SCRAM = "scram.ScramLoginModule"
_LOGIN = frozenset({"sasl.username", "sasl.password"})
_VERIFYING = "ssl.endpoint.identification.algorithm"


def java_options(options: Mapping[str, str]) -> dict[str, str]:
    """Returns those of `options` that say how to reach the cluster, as options of the Java client.

    Options that tune librdkafka are left out. Raises ChangelogError (USAGE) for a security option that the Java client
    lacks, and for a file that cannot be read.
    """
    return dict(_translated(options))


def _translated(options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in options.items():
        if name in _SAME:
            yield name, value
        elif name in _RENAMED:
            yield _RENAMED[name], value
        elif name in _PEM:
            type_, content = _PEM[name]
            yield type_, "PEM"
            yield content, _text(name, value)
        elif name == _VERIFYING:
            yield name, "" if value == "none" else value
        elif name.startswith(("sasl.", "ssl.", "enable.ssl", "https.")) and name not in _LOGIN:
            supported_options = ", ".join(sorted({*_RENAMED, *_PEM, *_LOGIN, _VERIFYING}))
            raise ChangelogError(
                Kind.USAGE, f"[sink] client: Kafka's Java client has no {name}", hint=f"it has {supported_options}"
            )
    if _LOGIN & options.keys():
        yield "sasl.jaas.config", _jaas(options)


def _jaas(options: Mapping[str, str]) -> str:
    mechanism = options.get("sasl.mechanism", options.get("sasl.mechanisms", ""))
    module = _MODULES.get(mechanism, _SCRAM)
    user, password = (_quoted(options.get(name, "")) for name in ("sasl.username", "sasl.password"))
    return f"org.apache.kafka.common.security.{module} required username={user} password={password};"


def _quoted(text: str) -> str:
    return '"{}"'.format(text.replace("\\", "\\\\").replace('"', '\\"'))


def _text(name: str, file: str) -> str:
    try:
        return Path(file).read_text("utf-8")
    except OSError as error:
        raise ChangelogError(Kind.USAGE, f"[sink] client: {name}: {file} cannot be read ({error.strerror})") from error
