"""The network between the processes and the servers of a world, and the sockets at its ends.

It is TCP: what is sent on one connection arrives in its order, or not at all. What the seed may do to it: each piece
takes its time; the way between a machine and a server is cut for a while, so that what is sent arrives late, perhaps
after its sender has given up; a connection goes dead without a word; a connection is reset.
"""

from __future__ import annotations

import errno
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from .world import Machine, Process, Thread, World


class Session(Protocol):
    """A server's side of one connection."""

    push: Callable[[bytes], None]  #: what the server says without being asked

    def feed(self, data: bytes) -> bytes:
        """Do what was asked; what it answers at once."""

    def close(self) -> None: ...


class Server:
    """A machine with one program that listens. ``accept`` makes a session for each connection."""

    def __init__(
        self, network: Network, machine: Machine, address: tuple[str, int], accept: Callable[[], Session]
    ) -> None:
        self.network = network
        self.machine = machine
        self.accept = accept
        self.up = True
        self.stopped_until = 0.0
        self.links: list[Link] = []
        network.servers[address] = self

    def stop(self, seconds: float) -> None:
        """As by SIGSTOP: connections are accepted by its kernel, and nobody answers."""
        self.stopped_until = max(self.stopped_until, self.network.world.time + seconds)

    def go_down(self) -> None:
        """The program ends. Its connections break, and new ones are refused."""
        self.up = False
        for link in list(self.links):
            link.reset()

    def come_up(self) -> None:
        self.up = True


#: Seconds that a message takes at most, on a quiet day.
QUIET = 0.002


class Network:
    def __init__(self, world: World, slowest: float = QUIET) -> None:
        self.world = world
        self.slowest = slowest
        self.servers: dict[tuple[str, int], Server] = {}
        self.sockets: dict[int, Socket] = {}
        self.links: list[Link] = []
        self._cut: dict[tuple[str, str], float] = {}
        world.network = self

    def socket(self, world: World) -> Socket:
        one = Socket(self, next(world.numbers) + 1_000_000)
        self.sockets[one.fileno()] = one
        return one

    def delay(self) -> float:
        random = self.world.random
        return (
            random.uniform(0.000_05, self.slowest) if random.random() < 0.97 else random.uniform(0, 20 * self.slowest)
        )

    def cut(self, machine: Machine, server: Server, seconds: float, *, answers: bool = False) -> None:
        """For so long nothing comes from the machine to the server; or, ``answers``, nothing comes back."""
        way = (server.machine.name, machine.name) if answers else (machine.name, server.machine.name)
        self._cut[way] = max(self._cut.get(way, 0.0), self.world.time + seconds)

    def open_again(self, sender: Machine, receiver: Machine) -> float:
        """When the way is open: now, or later."""
        until = self._cut.get((sender.name, receiver.name), 0.0)
        return until + self.delay() if until > self.world.time else self.world.time

    def connect(self, process: Process, address: tuple[str, int], client: Client) -> Link:
        link = Link(self, process, self.servers.get(address), client)
        self.links.append(link)
        self.world.after(self.delay(), link.arrive_first)
        return link


class Client(Protocol):
    """The process's end of a connection."""

    def connected(self) -> None: ...

    def receive(self, data: bytes) -> None: ...

    def broken(self, error: OSError | None) -> None:
        """None: the server has closed it."""


def _nobody() -> None:
    """Nobody wants to know."""


class Link:
    """One connection."""

    def __init__(self, network: Network, process: Process, server: Server | None, client: Client) -> None:
        self.network = network
        self.world = network.world
        self.process = process
        self.server = server
        self.client = client
        self.session: Session | None = None
        self.dead = False  #: nothing passes, and nobody is told
        self.closed = False  #: by the client
        self.late_until = 0.0  #: what is sent is lost again and again until then, and arrives at last
        self.when_closed: Callable[[], None] = _nobody
        self._up_at = self._down_at = 0.0  # when what was sent last arrives
        self._up, self._down = deque[bytes](), deque[bytes]()  # what is on its way: late or not, it stays in order

    def send(self, data: bytes) -> None:
        """From the client to the server."""
        if data and self._inherited:
            self.world.wrong.append(f"fork: a connection of {self.process.name} is used by its copy")
        self._up_at = max(self._up_at, self.world.time + self.network.delay())
        self._up.append(data)
        self.world.at(self._up_at, self._to_server)

    def push(self, data: bytes) -> None:
        """From the server to the client."""
        self._down_at = max(self._down_at, self.world.time + self.network.delay())
        self._down.append(data)
        self.world.at(self._down_at, self._to_client)

    def close(self) -> None:
        """By the client: what it has sent before arrives before that. A copy of it closes nothing."""
        if not self.closed and not self._inherited:
            self.closed = True
            self.when_closed()
            if self.dead:
                self._forget()
            else:
                self.send(b"")

    @property
    def _inherited(self) -> bool:
        return self.world.thread is not None and self.world.thread.process is not self.process

    def reset(self) -> None:
        """Both ends are told that it is over."""
        if self.session is not None:
            self.session.close()
        self._forget()
        if not self.dead and not self.closed:
            self.world.after(self.network.delay(), self.client.broken, ConnectionResetError(errno.ECONNRESET, "reset"))
        self.dead = True

    def _forget(self) -> None:
        if self in self.network.links:
            self.network.links.remove(self)
        if self.server is not None and self in self.server.links:
            self.server.links.remove(self)

    def arrive_first(self) -> None:
        server = self.server
        if self.dead or self.closed:
            return
        if server is None or not server.up:
            self._forget()
            self.client.broken(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))
            return
        later = self._later(self.process.machine, server.machine)
        if later:
            self.world.at(later, self.arrive_first)
            return
        self.session = server.accept()
        self.session.push = self.push
        server.links.append(self)
        self.world.after(self.network.delay(), self._accepted)

    def _accepted(self) -> None:
        if not self.dead and not self.closed and not self.process.dead:
            self.client.connected()

    def _later(self, sender: Machine, receiver: Machine) -> float:
        """When to try again; 0: it arrives now."""
        at = self.network.open_again(sender, receiver)
        return at if at > self.world.time else 0.0

    def _to_server(self) -> None:
        server = self.server
        if self.dead or server is None or self.session is None:
            return
        at = max(self._later(self.process.machine, server.machine), server.stopped_until, self.late_until)
        if at > self.world.time:
            self._up_at = max(self._up_at, at)
            self.world.at(at, self._to_server)
        elif data := self._up.popleft():
            answer = self.session.feed(data)
            if answer:
                self.push(answer)
        else:
            self.session.close()
            self._forget()

    def _to_client(self) -> None:
        if self.dead or self.closed or self.server is None or self.process.dead:
            return
        at = self._later(self.server.machine, self.process.machine)
        if at:
            self._down_at = max(self._down_at, at)
            self.world.at(at, self._to_client)
        elif data := self._down.popleft():
            self.client.receive(data)
        else:
            self.client.broken(None)


class Socket:
    """A blocking socket, or one that is polled."""

    def __init__(self, network: Network, number: int) -> None:
        self._network = network
        self._world = network.world
        self._number = number
        self._timeout: float | None = None
        self._inbox = bytearray()
        self._error: OSError | None = None
        self._ended = self._connected = False
        self._link: Link | None = None
        self.readers: list[Thread] = []

    # The network's side
    def connected(self) -> None:
        self._connected = True
        self._tell()

    def receive(self, data: bytes) -> None:
        self._inbox += data
        self._tell()

    def broken(self, error: OSError | None) -> None:
        self._error, self._ended = error, True
        self._tell()

    def _tell(self) -> None:
        for thread in self.readers:
            self._world.wake(thread)

    # The program's side
    @property
    def readable(self) -> bool:
        return bool(self._inbox) or self._ended

    def _wait(self, come: Callable[[], bool]) -> None:
        world = self._world
        me = world.here()
        until = None if self._timeout is None else world.time + self._timeout / me.process.machine.rate
        world.preempt()
        while not come():
            left = None if until is None else (until - world.time) * me.process.machine.rate
            if left is not None and left <= 0:
                raise (
                    BlockingIOError(errno.EAGAIN, "nothing there") if self._timeout == 0 else TimeoutError("timed out")
                )
            self.readers.append(me)
            try:
                world.sleep(left)
            finally:
                self.readers.remove(me)

    def connect(self, address: tuple[str, int]) -> None:
        self._link = self._network.connect(self._world.here().process, address, self)
        self._wait(lambda: self._connected or self._ended)
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise type(self._error)(*self._error.args)

    def send(self, data: bytes) -> int:
        self._world.preempt()
        if self._link is None:
            raise OSError(errno.EBADF, "Bad file descriptor")
        self._raise()
        self._link.send(bytes(data))
        return len(data)

    def sendall(self, data: bytes) -> None:
        self.send(data)

    def recv(self, most: int, flags: int = 0) -> bytes:
        if self._link is None:
            raise OSError(errno.EBADF, "Bad file descriptor")
        self._wait(lambda: self.readable or self._link is None)
        if self._inbox:
            data = bytes(self._inbox[:most])
            if not flags & socket.MSG_PEEK:
                del self._inbox[:most]
            return data
        self._raise()
        return b""

    def recv_into(self, buffer: bytearray, most: int = 0, flags: int = 0) -> int:
        data = self.recv(most or len(buffer), flags)
        buffer[: len(data)] = data
        return len(data)

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def setsockopt(self, *_: Any) -> None: ...

    def fileno(self) -> int:
        return self._number

    def shutdown(self, _: int) -> None:
        self.close()

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()
            self._network.sockets.pop(self._number, None)
        self._number = -1
        self._tell()

    detach = close
