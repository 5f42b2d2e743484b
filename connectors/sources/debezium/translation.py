"""Creates the function that translates Debezium's events, and logs the warnings of the translation."""

from dataclasses import replace

import structlog

from changelog.connectors.sources.debezium.decode.settings import TranslationSettings
from changelog.connectors.sources.debezium.decode.translate import Translator
from changelog.connectors.sources.debezium.tables import Translate

_log = structlog.get_logger("debezium")


def translator(settings: TranslationSettings) -> Translate:
    """Returns a function that translates Debezium's messages into events, as these settings say."""
    return Translator(replace(settings, warn=_warn)).translate


def _warn(sentence: str) -> None:
    _log.warning("events may not be what you expect", why=sentence)
