"""Where ZooKeeper is: ``LOCATION`` and ``OPTIONS`` → what a kazoo client is made of."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from ...core.config import StoreConfig
from ...core.errors import ConfigurationError
from ...core.setting import check_flag

#: Seconds that a lock in front of a request waits for an answer: a write is on the disks of a majority by then.
TIMEOUT = 2.0
#: Seconds without a word from us after which the servers end our session: our places in the queues go with it.
SESSION_TIMEOUT = 15.0

_FILES = ("ca", "certfile", "keyfile")
_FLAGS = ("use_ssl", "verify_certs", "check_hostname")
_OPTIONS = ("session_timeout", "timeout", "auth", *_FILES, "keyfile_password", *_FLAGS)


@dataclass(frozen=True)
class ZooAddress:
    """The servers, and how to talk to them."""

    hosts: str  #: as kazoo takes it, with the chroot
    chroot: str
    session_timeout: float
    timeout: float
    auth: str = field(repr=False)  #: ``user:password``, or empty
    tls: Mapping[str, Any]
    name: str  #: for messages, without credentials


def address(config: StoreConfig) -> ZooAddress:
    """The address that a store's settings name. Raises ``ConfigurationError`` for what cannot be right."""
    where = f"DISTLOCK[{config.alias!r}]"
    options = config.options
    config.check_options(_OPTIONS)
    hosts, chroot, auth = _parse(config)
    return ZooAddress(
        hosts=hosts + chroot,
        chroot=chroot,
        session_timeout=config.seconds("session_timeout", SESSION_TIMEOUT, minimum=0.1),
        timeout=config.seconds("timeout", TIMEOUT, minimum=0.01),
        auth=_auth(options.get("auth", auth), f'{where}["OPTIONS"]["auth"]'),
        tls=_tls(options, where),
        name=f"ZooKeeper at {hosts}{chroot}",
    )


def _parse(config: StoreConfig) -> tuple[str, str, str]:
    """The servers, the chroot and the credentials of a URL."""
    location = config.location or "zookeeper://127.0.0.1:2181"
    scheme, _, rest = location.partition("://")
    servers, slash, path = rest.partition("/")
    credentials, _, servers = servers.rpartition("@")
    chroot = (slash + path).rstrip("/")
    hosts = servers.split(",")
    components = chroot.split("/")[1:]
    right = scheme == "zookeeper" and all(map(_is_host, hosts)) and not {"", ".", ".."}.intersection(components)
    if not right or not {"?", "#"}.isdisjoint(location) or "@" in chroot:  # in a chroot: a password with a slash
        raise config.wrong_location(
            "a URL such as zookeeper://10.0.0.1:2181,10.0.0.2:2181/locks, where the path, if there is one, is a node "
            "that exists: the chroot. / and @ in a password: %2F and %40"
        )
    return ",".join(hosts), unquote(chroot), unquote(credentials)


def _is_host(server: str) -> bool:
    try:
        parts = urlsplit("//" + server)
        return bool(parts.hostname) and (parts.port is None or parts.port > 0) and not parts.path
    except ValueError:  # a port that is none, a bracket that is not closed
        return False


def _auth(given: object, setting: str) -> str:
    if not isinstance(given, str) or (given and ":" not in given):
        raise ConfigurationError(f'{setting} has to be text such as "user:password", for the scheme "digest".')
    return given


def _tls(options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The options of TLS. A certificate that is not there would look like a server that is not."""
    for name in _FLAGS:
        if name in options:
            check_flag(options[name], f'{where}["OPTIONS"][{name!r}]')
    for name in _FILES:
        path = options.get(name)
        if path is not None and not os.access(path, os.R_OK):
            why = "cannot be read" if os.path.exists(path) else "does not exist"
            raise ConfigurationError(f'{where}["OPTIONS"][{name!r}] names {str(path)!r}, which {why}.')
    return {name: options[name] for name in (*_FILES, "keyfile_password", *_FLAGS) if name in options}
