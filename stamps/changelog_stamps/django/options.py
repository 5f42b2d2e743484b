"""Reads Django's setting `CHANGELOG_STAMPS`, and adds the service and version in it to the current stamp."""

from __future__ import annotations

from typing import Any

from django.conf import settings

from changelog_stamps.current import current
from changelog_stamps.members import Stamp, altered


def options() -> dict[str, Any]:
    """Returns the setting; an empty mapping if there is none."""
    return dict(getattr(settings, "CHANGELOG_STAMPS", None) or {})


def chosen() -> Stamp:
    """Returns the current stamp. If the current stamp names no service, the setting supplies the service, and also the
    version if the stamp has none. So changes outside of requests are stamped, too.
    """
    stamp = current()
    if stamp.service:
        return stamp
    setting = options()
    return altered(stamp, service=setting.get("service"), version=stamp.version or setting.get("version"))
