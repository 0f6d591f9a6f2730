"""A ``DISTLOCK`` mapping → frozen, checked values. A typo must not become a default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from .errors import ConfigurationError
from .formats import BEFORE
from .location import without_credentials
from .setting import (
    DOTTED,
    POLICIES,
    check_flag,
    check_format,
    check_mapping,
    check_prefix,
    check_seconds,
    check_seconds_or_none,
    check_text,
    read_policy,
    shown,
    unknown_name,
)

#: Those of ours, and the schemes of a LOCATION that means one; a driver may follow a scheme: ``mysql+pymysql://``.
_OURS = {
    "redis": ("redis.RedisBackend", "redis rediss unix redis+sentinel rediss+sentinel"),
    "redis-cluster": ("redis.cluster.ClusterBackend", "redis+cluster rediss+cluster"),
    "redlock": ("redlock.RedlockBackend", "redlock"),
    "sql": ("sql.SQLBackend", "mysql mariadb postgresql postgres sqlite"),
    "zookeeper": ("zookeeper.ZooKeeperBackend", "zookeeper"),
    "memory": ("memory.MemoryBackend", "memory"),
}
BACKENDS = {name: f"distlock_web.backends.{path}" for name, (path, _) in _OURS.items()}
SCHEMES = {scheme: name for name, (_, schemes) in _OURS.items() for scheme in schemes.split()}
#: What to install for a backend, or for a scheme of its LOCATION, where the extra has another name.
EXTRAS = {
    "redis-cluster": "redis",
    "redlock": "redis",
    "mariadb": "mysql",
    "mysql": "mysql",
    "postgres": "postgresql",
    "postgresql": "postgresql",
    "sqlite": "sqlite",
}
#: What names begin with where no ``PREFIX`` is set: that of the seeds.
DEFAULT_PREFIX = "disLock:"


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """One alias of ``DISTLOCK``: where its locks live and what they default to."""

    alias: str
    backend: str = "redis"  #: an alias of ours or a dotted path
    location: str = field(default="", repr=False)  #: may have a password in it
    cache: str = ""  #: a Django cache whose server is used, in place of ``location``
    database: str = ""  #: a database of Django, in place of ``location``
    prefix: str = DEFAULT_PREFIX
    expire: float = 10.0
    wait: float | None = 0.0
    renew: bool = False
    on_busy: str | Callable[..., Any] = "raise"
    on_lost: str | Callable[..., Any] = "raise"
    on_backend_error: str | Callable[..., Any] = "raise"
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    format: int = BEFORE  #: in which things are stored: see ``formats.py``
    #: What a framework has for ``cache`` or ``database``, made when the backend asks for it.
    resource: Callable[[], object] | None = None

    @property
    def given(self) -> tuple[str, ...]:
        """Those of the settings that not every backend understands."""
        beside = {"LOCATION": self.location, "CACHE": self.cache, "DATABASE": self.database, "OPTIONS": self.options}
        return tuple(name for name, value in beside.items() if value)

    def check_options(self, known: tuple[str, ...]) -> None:
        """``ConfigurationError`` for an option that this backend does not have."""
        for name in self.options:
            if name not in known:
                raise ConfigurationError(unknown_name(f'{self._where}["OPTIONS"] has', name, known))

    def seconds(self, option: str, default: float, *, zero: bool = False, minimum: float = 0.0) -> float:
        """A time of ``OPTIONS``."""
        setting = f'{self._where}["OPTIONS"][{option!r}]'
        return check_seconds(self.options.get(option, default), setting, zero=zero, minimum=minimum)

    def wrong_location(self, right: str) -> ConfigurationError:
        """The error for a ``LOCATION`` that the backend cannot use; ``right`` says what it has to be."""
        shown = without_credentials(self.location)
        return ConfigurationError(f'{self._where}["LOCATION"] is {shown!r}; it has to be {right}.')

    @property
    def _where(self) -> str:
        return f"DISTLOCK[{self.alias!r}]"

    @property
    def path(self) -> str:
        return BACKENDS.get(self.backend, self.backend)

    @property
    def extra(self) -> str:
        """What to install for it: of an SQL store with the driver of its database."""
        scheme = self.location.partition("://")[0].partition("+")[0]
        return EXTRAS.get(scheme) or EXTRAS.get(self.backend, self.backend)


#: What only a framework can know, by the setting that names it: ``{"CACHE": connection_pool, "DATABASE": address}``,
#: called with its value.
Resources: TypeAlias = Mapping[str, Callable[[str], object]]


def with_resource(config: StoreConfig, resources: Resources) -> StoreConfig:
    """The settings of a store with what only a framework has for them."""
    for setting, name in (("CACHE", config.cache), ("DATABASE", config.database)):
        if name and setting not in resources:
            raise ConfigurationError(
                f"DISTLOCK[{config.alias!r}] has {setting}, which names a {setting.lower()} of Django, but this is no "
                f"Django project that lists distlock_web.django in INSTALLED_APPS: use LOCATION."
            )
        if name:
            return replace(config, resource=partial(resources[setting], name))
    return config


def parse(mapping: object) -> dict[str, StoreConfig]:
    """Check a whole ``DISTLOCK`` mapping. ``ConfigurationError`` for the first mistake, with notes of the others."""
    configs, mistakes = read(mapping)
    for other in mistakes[1:]:
        mistakes[0].add_note(f"Another mistake: {other}")
    if mistakes:
        raise mistakes[0]
    return configs


def read(mapping: object) -> tuple[dict[str, StoreConfig], list[ConfigurationError]]:
    """Every alias of a ``DISTLOCK`` mapping, with what is right of its settings; and every mistake."""
    if not isinstance(mapping, Mapping) or not mapping:
        wrong = "empty" if mapping is None or isinstance(mapping, Mapping) else shown(mapping)
        form = 'a mapping such as {"default": {"LOCATION": "redis://..."}}'
        return {}, [ConfigurationError(f"DISTLOCK is {wrong}; it has to be {form}.")]
    mistakes: list[ConfigurationError] = []
    if "default" not in mapping:
        known = ", ".join(map(_shown_alias, mapping))
        mistakes.append(ConfigurationError(f'DISTLOCK has no entry "default", only {known}; it has to have one.'))
    return {alias: _read_one(alias, given, mistakes) for alias, given in mapping.items()}, mistakes


#: Those that say where the locks live: one of them at most.
_PLACES = ("LOCATION", "CACHE", "DATABASE")


def _is_alias(alias: object) -> bool:
    return isinstance(alias, str) and "://" not in alias


def _shown_alias(alias: object) -> str:
    return repr(alias) if _is_alias(alias) else shown(alias)


def _read_one(alias: object, given: object, mistakes: list[ConfigurationError]) -> StoreConfig:
    where, values = f"DISTLOCK[{_shown_alias(alias)}]", {}
    if not _is_alias(alias):
        mistakes.append(ConfigurationError(f'{where}: the alias of a store has to be a name such as "default".'))
    if not isinstance(given, Mapping):
        mistakes.append(ConfigurationError(f"{where} is {shown(given)}; it has to be a mapping of settings."))
        given = {}
    for name, value in given.items():
        try:
            if name not in SETTINGS:
                raise ConfigurationError(unknown_name(f"{where} has the setting", name, tuple(SETTINGS)))
            values[name.lower()] = SETTINGS[name](value, f'{where}["{name}"]')
        except ConfigurationError as error:
            mistakes.append(error)
    places = [name for name in _PLACES if values.get(name.lower())]
    if len(places) > 1:
        what = "the locks live in one place, name one."
        mistakes.append(ConfigurationError(f"{where} has both {' and '.join(places)}: {what}"))
        values = {name: value for name, value in values.items() if name.upper() not in places}
    if "BACKEND" not in given:
        try:
            values["backend"] = "sql" if values.get("database") else _backend_of(values.get("location", ""), where)
        except ConfigurationError as error:
            mistakes.append(error)
    return StoreConfig(str(alias) if _is_alias(alias) else shown(alias), **values)


def _backend(given: object, setting: str) -> str:
    backend = check_text(given, setting)
    if backend not in BACKENDS and not DOTTED.fullmatch(backend):
        known = unknown_name(f"{setting} names", backend, tuple(BACKENDS))
        raise ConfigurationError(f"{known} A dotted path of a class is accepted as well.")
    return backend


def _backend_of(location: str, where: str) -> str:
    """The backend that a URL means where none is named; of what is no URL, Redis says what is wrong with it."""
    scheme, mark, _ = location.partition("://")
    backend = SCHEMES.get(scheme) or SCHEMES.get(scheme.partition("+")[0])
    if backend is None and mark:
        raise ConfigurationError(unknown_name(f'{where}["LOCATION"] has the scheme', scheme, tuple(SCHEMES)))
    return backend or "redis"


#: The settings of a store, and what makes a value of each, or refuses it.
SETTINGS: dict[str, Callable[[Any, str], Any]] = {
    "BACKEND": _backend,
    "LOCATION": check_text,
    "CACHE": check_text,
    "DATABASE": check_text,
    "PREFIX": check_prefix,
    "EXPIRE": check_seconds,
    "WAIT": partial(check_seconds_or_none, zero=True),
    "RENEW": check_flag,
    **{name.upper(): partial(read_policy, name) for name in POLICIES},
    "OPTIONS": check_mapping,
    "FORMAT": check_format,
}
