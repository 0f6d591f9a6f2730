"""The settings of a project beside its ``DISTLOCK``: Django's in ``settings.py``, Flask's in ``app.config``."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import Any

from ..core.config import SETTINGS
from ..core.errors import ConfigurationError
from ..core.registry import Registry, check_url, configured
from ..core.request_id import DEFAULT_HEADER
from ..core.setting import Setting, table, unchecked, unknown_name
from .request_ids import header_name, user_hook

#: What holds for every alias that does not say its own.
PROJECT_POLICIES = table(
    *(
        SETTINGS[name]._replace(
            name=f"DISTLOCK_{name}", meaning=f"`{name}` [for all aliases](responses.md#where-a-policy-is-said)"
        )
        for name in ("ON_BUSY", "ON_LOST", "ON_BACKEND_ERROR")
    )
)
PROJECT_SETTINGS = {
    **table(
        Setting("DISTLOCK", unchecked, None, "the stores: maps each alias to the settings above", "`DISTLOCK_URL`"),
        Setting(
            "DISTLOCK_REQUEST_ID_HEADER", header_name, DEFAULT_HEADER,
            "the header of the request id. If it is not set, `X-Request-ID` is read as well",
        ),
        Setting(
            "DISTLOCK_USER", user_hook, None,
            "a function that names the [user of a request](observability.md#who-holds-it), or its dotted path",
        ),
    ),
    **PROJECT_POLICIES,
}  # fmt: skip


def make_backends(own: Registry | None) -> None:
    """When an app starts, so that a wrong option or address, or a missing driver, stops that and not the first request.

    Nothing is sent yet. ``own``: the stores of the app; None: it has those of the process. Nothing is configured by a
    look at ``DISTLOCK_URL``: until the first lock, the project may call ``configure()``, or name another one.
    """
    if own is not None:
        for store in own.stores.values():
            _ = store.backend
    elif configured() is None and (url := os.environ.get("DISTLOCK_URL")):
        check_url(url, "DISTLOCK_URL")


#: From here on a name that is none of ours is a slip (``DISTLOCK_ON_BUZY``), and not a name of the project's own.
_ALIKE = 0.8


def read_setting(name: str, get: Callable[[str, Any], Any]) -> Any:
    """The value of one, or its default; ``get`` asks the project. Raises ``ConfigurationError``."""
    row = PROJECT_SETTINGS[name]
    return row.check(get(name, row.default), name)


def unknown_settings(names: Collection[str], where: str) -> tuple[list[ConfigurationError], list[ConfigurationError]]:
    """The settings that begin like ours and are none: those that look like a slip, and the others.

    The others may be the project's own, and are no mistake, but they are not read: ``DISTLOCK_PREFIX`` beside a
    ``DISTLOCK`` that is made of it. Nothing is said of a ``DISTLOCK_URL`` there.
    """
    slips: list[str] = []
    others: list[str] = []
    known = {*PROJECT_SETTINGS, "DISTLOCK_URL"} if "DISTLOCK" in names else PROJECT_SETTINGS
    for name in names:
        if not name.startswith("DISTLOCK") or name in known:
            continue
        own = "LOCATION" if name == "DISTLOCK_URL" else name.removeprefix("DISTLOCK_")  # the first is the environment's
        if own in SETTINGS:
            text = f'{where} the setting {name!r}, which belongs to a store: DISTLOCK["default"]["{own}"].'
            (others if "DISTLOCK" in names or name == "DISTLOCK_URL" else slips).append(text)
        elif get_close_matches(name, PROJECT_SETTINGS, 1, _ALIKE):
            slips.append(unknown_name(f"{where} the setting", name, PROJECT_SETTINGS))
        else:
            read = ", ".join(PROJECT_SETTINGS)
            others.append(f"{where} the setting {name!r}, which distlock_web does not read: it reads {read}.")
    return [ConfigurationError(text) for text in slips], [ConfigurationError(text) for text in others]


def with_policies(mapping: Any, project: Mapping[str, Any]) -> tuple[Any, list[ConfigurationError]]:
    """A ``DISTLOCK`` mapping in which every alias has the project's policies (``DISTLOCK_ON_BUSY`` …) or its own.

    Beside it, what is wrong with these policies.
    """
    common: dict[str, Any] = {}
    mistakes: list[ConfigurationError] = []
    for setting, row in PROJECT_POLICIES.items():
        if setting not in project:
            continue
        try:
            common[setting.removeprefix("DISTLOCK_")] = row.check(project[setting], setting)
        except ConfigurationError as error:
            mistakes.append(error)
        if mapping is None:
            mistakes.append(ConfigurationError(f"{setting} is for the stores of DISTLOCK, which is not set."))
    if not isinstance(mapping, Mapping):  # parse() says what is wrong with it
        return mapping, mistakes
    aliases = {alias: {**common, **given} if isinstance(given, Mapping) else given for alias, given in mapping.items()}
    return aliases, mistakes
