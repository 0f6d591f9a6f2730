"""Where ZooKeeper is: ``LOCATION`` and ``OPTIONS`` → what a kazoo client is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import unquote

from ...core.config import StoreConfig
from ...core.errors import ConfigurationError
from ...core.location import host_and_port, split_location
from ...core.setting import Setting, check_file, check_flag, check_seconds, table, unchecked


def _check_auth(given: object, setting: str) -> str:
    if not isinstance(given, str) or (given and ":" not in given):
        raise ConfigurationError(f'{setting} has to be text such as "user:password", for the scheme "digest".')
    return given


PORT = 2181

#: kazoo's own, handed on as they are.
TLS = table(
    Setting("use_ssl", check_flag, None, "encrypt the connection", "kazoo's: `False`"),
    Setting("ca", check_file, None, "the file with the certificates of the authorities", "the system's"),
    Setting("certfile", check_file, None, "the file with the certificate of the client", "none"),
    Setting("keyfile", check_file, None, "the file with the key of that certificate", "none"),
    Setting("keyfile_password", unchecked, None, "the password of that file", "none"),
    Setting("verify_certs", check_flag, None, "check the server's certificate", "kazoo's: `True`"),
    Setting("check_hostname", check_flag, None, "compare it with the name of the host", "kazoo's: `False`"),
)
OPTIONS = {
    **table(
        Setting(
            "timeout", partial(check_seconds, minimum=0.01), 2.0,
            "seconds until a request without an answer raises `BackendUnavailable`. After that, requests are refused "
            "at once until ZooKeeper answers again",
        ),
        Setting(
            "session_timeout", partial(check_seconds, minimum=0.1), 15.0,
            "seconds of silence after which ZooKeeper considers a process dead: its places in the queues go with it. "
            "The servers limit this value (`minSessionTimeout`, `maxSessionTimeout`)",
        ),
        Setting(
            "auth", _check_auth, None,
            "digest credentials. Only this user can then read and write the nodes, so every process needs the same "
            "credentials. Without `auth` the nodes are open to everybody",
            "from the URL (`zookeeper://user:password@…`), else none",
        ),
    ),
    **TLS,
}  # fmt: skip


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
    given = config.read_options(OPTIONS)
    hosts, chroot, auth = _parse(config)
    return ZooAddress(
        hosts=hosts + chroot,
        chroot=chroot,
        session_timeout=given["session_timeout"],
        timeout=given["timeout"],
        auth=_check_auth(auth, config.option("auth")) if given["auth"] is None else given["auth"],
        tls={name: given[name] for name in TLS if given[name] is not None},
        name=f"ZooKeeper at {hosts}{chroot}",
    )


def _parse(config: StoreConfig) -> tuple[str, str, str]:
    """The servers, the chroot and the credentials of a URL."""
    location = config.location or f"zookeeper://127.0.0.1:{PORT}"
    parts = split_location(location)
    chroot = f"/{parts.path}".rstrip("/")
    components = chroot.split("/")[1:]
    right = parts.scheme == "zookeeper" and all(host_and_port(host, PORT) for host in parts.hosts)
    right = right and not {"", ".", ".."}.intersection(components)
    if not right or not {"?", "#"}.isdisjoint(location) or parts.cut_short:
        raise config.wrong_location(
            "a URL such as zookeeper://10.0.0.1:2181,10.0.0.2:2181/locks, where the path, if there is one, is a node "
            "that exists: the chroot. / and @ in a password: %2F and %40"
        )
    return ",".join(parts.hosts), unquote(chroot), unquote(parts.credentials.removesuffix("@"))
