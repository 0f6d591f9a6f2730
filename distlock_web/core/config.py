"""A ``DISTLOCK`` mapping → frozen, checked values. A typo must not become a default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from .errors import ConfigurationError
from .formats import BEFORE
from .location import without_credentials
from .setting import (
    DOTTED,
    ON_BACKEND_ERROR,
    ON_BUSY,
    ON_LOST,
    Setting,
    Settings,
    check_flag,
    check_format,
    check_known,
    check_mapping,
    check_prefix,
    check_seconds,
    check_text,
    check_wait,
    shown,
    table,
    unknown_name,
)


class KnownStore(NamedTuple):
    """A store of ours."""

    path: str  #: of its class, below ``distlock_web.backends``
    extra: str  #: what to install for it
    schemes: tuple[str, ...]  #: of a ``LOCATION`` that means it; a driver may follow one: ``mysql+pymysql://``


STORES = {
    "redis": KnownStore(
        "redis.RedisBackend", "redis", ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")
    ),
    "redis-cluster": KnownStore("redis.cluster.ClusterBackend", "redis", ("redis+cluster", "rediss+cluster")),
    "redlock": KnownStore("redlock.RedlockBackend", "redis", ("redlock",)),
    "sql": KnownStore("sql.SQLBackend", "sql", ("mysql", "mariadb", "postgresql", "postgres", "sqlite")),
    "zookeeper": KnownStore("zookeeper.ZooKeeperBackend", "zookeeper", ("zookeeper",)),
    "memory": KnownStore("memory.MemoryBackend", "memory", ("memory",)),
}
_BY_SCHEME = {scheme: name for name, store in STORES.items() for scheme in store.schemes}
#: What to install for a kind of database, with its driver.
_EXTRAS = {
    "mysql": "mysql",
    "mariadb": "mysql",
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "sqlite": "sqlite",
}


def _backend(given: object, setting: str) -> str:
    backend = check_text(given, setting)
    if backend not in STORES and not DOTTED.fullmatch(backend):
        known = unknown_name(f"{setting} names", backend, STORES)
        raise ConfigurationError(f"{known} A dotted path of a class is accepted as well.")
    return backend


#: The settings of a store.
SETTINGS = table(
    Setting(
        "BACKEND", _backend, "redis",
        "which [store](which-store.md), or [a class of your own](backends.md)",
        "from `LOCATION`; SQL with `DATABASE`; else Redis",
    ),
    Setting(
        "LOCATION", check_text, "",
        "the store's address: `redis://host:port/db`, `postgresql://…`, `zookeeper://…`",
        "Redis and ZooKeeper: this machine, the usual port",
    ),
    Setting("CACHE", check_text, "", "instead of `LOCATION`: the Redis of a Django cache"),
    Setting("DATABASE", check_text, "", "instead of `LOCATION`: a [database](sql.md) of Django"),
    Setting(
        "PREFIX", check_prefix, "disLock:",
        "what all names begin with. [Two projects on one server](which-store.md#two-projects-on-one-server) need two",
    ),
    Setting("EXPIRE", check_seconds, 10.0, "default of the option `expire`"),
    Setting("WAIT", check_wait, 0.0, "default of the option `wait`"),
    Setting("RENEW", check_flag, False, "default of the option `renew`"),
    Setting("ON_BUSY", ON_BUSY.read, "raise", "default of the option `on_busy`, also as the dotted path of a callable"),
    Setting("ON_LOST", ON_LOST.read, "raise", "default of the option `on_lost`, also as the dotted path of a callable"),
    Setting(
        "ON_BACKEND_ERROR", ON_BACKEND_ERROR.read, "raise",
        "default of the option `on_backend_error`, also as the dotted path of a callable",
    ),
    Setting(
        "OPTIONS", check_mapping, {},
        "options of the store: `password`, `socket_timeout`, … ([Redis](redis.md#options), "
        "[Redlock](redlock.md#options), [SQL](sql.md#options), [ZooKeeper](zookeeper.md#options))",
    ),
    Setting(
        "FORMAT", check_format, BEFORE,
        "the [format of what is stored](upgrading.md#a-new-version-of-this-library): 1, or 2 when all processes "
        "read it",
    ),
)  # fmt: skip


_DEFAULTS = {name: row.default for name, row in SETTINGS.items()}


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """One alias of ``DISTLOCK``: where its locks live, and what they default to. ``SETTINGS`` explain each field."""

    alias: str
    backend: str = _DEFAULTS["BACKEND"]
    location: str = field(default=_DEFAULTS["LOCATION"], repr=False)  #: may have a password in it
    cache: str = _DEFAULTS["CACHE"]
    database: str = _DEFAULTS["DATABASE"]
    prefix: str = _DEFAULTS["PREFIX"]
    expire: float = _DEFAULTS["EXPIRE"]
    wait: float | None = _DEFAULTS["WAIT"]
    renew: bool = _DEFAULTS["RENEW"]
    on_busy: str | Callable[..., Any] = _DEFAULTS["ON_BUSY"]
    on_lost: str | Callable[..., Any] = _DEFAULTS["ON_LOST"]
    on_backend_error: str | Callable[..., Any] = _DEFAULTS["ON_BACKEND_ERROR"]
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    format: int = _DEFAULTS["FORMAT"]  #: in which things are stored: see ``formats.py``
    #: What a framework has for ``cache`` or ``database``, made when the backend asks for it.
    resource: Callable[[], object] | None = None

    @property
    def given(self) -> tuple[str, ...]:
        """Those of the settings that not every backend understands."""
        beside = {"LOCATION": self.location, "CACHE": self.cache, "DATABASE": self.database, "OPTIONS": self.options}
        return tuple(name for name, value in beside.items() if value)

    def read_options(self, rows: Settings) -> dict[str, Any]:
        """The value of each of a store's rows, checked, or its default. ``ConfigurationError`` for any other name."""
        check_known(self.options, rows, f"{self.setting('OPTIONS')} has")
        return {
            name: row.check(self.options[name], self.option(name)) if name in self.options else row.default
            for name, row in rows.items()
        }

    @property
    def where(self) -> str:
        """What the store is called in messages."""
        return f"DISTLOCK[{self.alias!r}]"

    def setting(self, name: str) -> str:
        """What one of its settings is called there."""
        return _setting(self.where, name)

    def option(self, name: str) -> str:
        """What one of its ``OPTIONS`` is called there. One that is not in them is of the URL, or of a cache."""
        return f"{self.setting('OPTIONS')}[{name!r}]" if name in self.options else f"{self.where}: {name}"

    def wrong_location(self, right: str) -> ConfigurationError:
        """The error for a ``LOCATION`` that the backend cannot use; ``right`` says what it has to be."""
        shown = without_credentials(self.location)
        return ConfigurationError(f"{self.setting('LOCATION')} is {shown!r}; it has to be {right}.")

    @property
    def path(self) -> str:
        known = STORES.get(self.backend)
        return self.backend if known is None else f"distlock_web.backends.{known.path}"

    @property
    def extra(self) -> str:
        """What to install for it: of an SQL store with the driver of its database."""
        known = STORES.get(self.backend)
        return _EXTRAS.get(_scheme(self.location), self.backend if known is None else known.extra)


def _setting(where: str, name: str) -> str:
    return f'{where}["{name}"]'


def _scheme(location: str) -> str:
    """Without the name of a driver."""
    return location.partition("://")[0].partition("+")[0]


#: What only a framework can know, by the setting that names it: ``{"CACHE": connection_pool, "DATABASE": address}``,
#: called with its value.
Resources: TypeAlias = Mapping[str, Callable[[str], object]]


def with_resource(config: StoreConfig, resources: Resources) -> StoreConfig:
    """The settings of a store with what only a framework has for them."""
    for setting, name in (("CACHE", config.cache), ("DATABASE", config.database)):
        if name and setting not in resources:
            raise ConfigurationError(
                f"{config.where} has {setting}, which names a {setting.lower()} of Django, but this is no "
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
            check_known([name], SETTINGS, f"{where} has the setting")
            values[name.lower()] = SETTINGS[name].check(value, _setting(where, name))
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


def _backend_of(location: str, where: str) -> str:
    """The backend that a URL means where none is named; of what is no URL, Redis says what is wrong with it."""
    scheme, mark, _ = location.partition("://")
    backend = _BY_SCHEME.get(scheme) or _BY_SCHEME.get(_scheme(location))
    if backend is None and mark:
        raise ConfigurationError(unknown_name(f"{_setting(where, 'LOCATION')} has the scheme", scheme, _BY_SCHEME))
    return backend or "redis"
