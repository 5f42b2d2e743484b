"""Defines the section `[console]`."""

from pathlib import Path

from pydantic import Field

from changelog.connectors.config.web import WebConfig


class ConsoleConfig(WebConfig):
    """`[console]`: where `changelog console` listens, who may open it, and where it finds drift reports."""

    port: int = Field(default=9465, ge=0, le=65535)
    drift_reports: Path | None = None
