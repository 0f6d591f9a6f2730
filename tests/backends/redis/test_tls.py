"""TLS that cannot be right is a mistake in the settings: named, and never a reason to go on without a lock."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis
from redis.asyncio import SSLConnection

from distlock_web import ConfigurationError, configure, lock
from distlock_web.backends.redis.transport.address import address, parameters
from distlock_web.core.config import parse
from distlock_web.testing.servers import ServerMissing
from tests.support.requirements import require


def openssl_program() -> str:
    if found := shutil.which("openssl"):
        return found
    raise ServerMissing("no openssl in PATH")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Of an authority that nobody knows: certificate and key."""
    require("openssl", openssl_program)
    folder = tmp_path_factory.mktemp("tls")
    paths = folder / "cert.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -out {} -keyout {}".format(*paths)
    subprocess.run(command.split(), check=True, capture_output=True, timeout=60)
    return paths


@pytest.fixture
def tls_port(certificate: tuple[Path, Path]) -> Iterator[int]:
    """A server that shows this certificate, and says nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                with suppress(OSError), context.wrap_socket(connection, server_side=True) as secured:
                    secured.recv(1)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(10)


def never_reached() -> None:
    raise AssertionError("it ran without a lock")


@pytest.mark.parametrize("ca", [False, True], ids=["unknown authority", "another host"])
async def test_a_certificate_that_fails_is_not_a_store_that_is_unreachable(
    tls_port: int, certificate: tuple[Path, Path], ca: bool
) -> None:
    # redis-py checks the name of the host unasked since 6.0.
    options = {"ssl_ca_certs": str(certificate[0]), "ssl_check_hostname": True} if ca else {}
    location = f"rediss://127.0.0.1:{tls_port}"
    configure({"default": {"LOCATION": location, "OPTIONS": options, "ON_BACKEND_ERROR": "open"}})
    with pytest.raises(ConfigurationError, match=r"certificate that is not trusted.*ssl_ca_certs"):
        async with lock("a"):
            never_reached()


@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_ca_path"])
@pytest.mark.parametrize("where", ["OPTIONS", "LOCATION"])
def test_a_file_that_is_missing_is_named(option: str, where: str) -> None:
    missing = "/no/such/ca.pem"
    settings = {"LOCATION": "rediss://127.0.0.1"}
    if where == "LOCATION":
        settings["LOCATION"] += f"?{option}={missing}"
    configure({"default": {**settings, "OPTIONS": {option: missing} if where == "OPTIONS" else {}}})
    named = rf"\[\"OPTIONS\"\]\['{option}'\]" if where == "OPTIONS" else f"DISTLOCK\\['default'\\]: {option}"
    with pytest.raises(ConfigurationError, match=rf"{named} names '{missing}', which does not exist"), lock("a"):
        pass


@pytest.mark.parametrize("option", sorted(parameters(redis.SSLConnection) - parameters(SSLConnection)))
def test_what_only_threads_can_do_is_said(option: str) -> None:
    """It was a TypeError of redis-py at every `async with lock`."""

    def connect(value: object) -> None:
        options = {option: value, "port": 1, "socket_timeout": 0.5}
        config = parse({"default": {"LOCATION": "rediss://127.0.0.1", "OPTIONS": options}})["default"]
        asyncio.run(address(config).aconnect())

    with pytest.raises(ConfigurationError, match=f"redis-py {redis.__version__} has no {option} for asyncio"):
        connect(__file__)  # there is one of that name, where a file is asked for
    with pytest.raises(redis.ConnectionError):  # nobody asked for anything
        connect(None)
