"""The queue for a lock: who comes joins its end, the first has the lock, the others wait.

Two questions are decided here.

*Whether the first in the queue still has its lease*, by the leader's clock alone: its node's last change began the
lease, and the node says how long it lasts. A process that finds it over removes the node, in the version that it has
seen: a renewal that comes meanwhile wins, or finds the node gone. A node that is made anew at the same path, to be
persistent, begins its versions again; so the version of the lock's own node moves on with it, and is compared, too.
Under a new leader, whose clock is another, the time that has passed is not known: the lease begins anew, once.

*Its fence*: the number of its node, which only grows while the lock's own node lives, added to a base that is not less
than the time, in microseconds, when the lock's node was made. A base that has fallen behind the time is raised by the
next holder, before it is told that it is the holder, and never lowered. So a fence keeps to the floor that all stores
share, and grows without a request of its own. If a lock was idle until the servers removed its node, it is the leader's
time that makes the next fence greater, as in the other stores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kazoo.exceptions import NoNodeError, ZookeeperError

from ...core.backend import Busy, Claim, Granted
from ...core.errors import BackendUnavailable, ConfigurationError, DistLockError
from ...core.runtime import now
from ...kit.wakeups import stagger
from .nodes import (
    CLAIMED,
    HELD,
    OFFERED,
    ROOT,
    WAITING,
    Child,
    Mark,
    ZooRecord,
    digest_of,
    in_order,
    mark,
    path_of,
    record,
)
from .places import UNKNOWN, Place, Places, ZooLease
from .requests import delete_as_seen, get_request, look_requests, write, written
from .session import Client, Request, Session, committed

#: Seconds until the next question where a lease may end at this very moment.
MIN_RECHECK = 0.002
#: The part of its lease in which a waiter has to come when it is its turn.
TURN = 0.5
#: Of a session that does not answer so many places are removed at a time.
MAX_PASSED = 100
#: Microseconds that a fence may be behind the leader's time.
MAX_LAG = 1_000_000


@dataclass(frozen=True, slots=True)
class View:
    """A lock, as it was a moment ago."""

    path: str
    queue: list[Child]
    mark: Mark  #: with the base in force
    version: int

    def find(self, digest: str) -> Child | None:
        return next((child for child in self.queue if child.digest == digest), None)

    def fence(self, child: Child) -> int:
        return self.mark.base + child.number

    def child_path(self, child: Child) -> str:
        return f"{self.path}/{child.node}"


@dataclass(frozen=True, slots=True)
class Head:
    """The first in a queue."""

    path: str
    record: ZooRecord
    stat: Any
    remaining: float


class LockQueue:
    def __init__(self, session: Session, places: Places) -> None:
        self._session = session
        self._places = places
        self.clock = session.clock

    # Looking ------------------------------------------------------------------------------------------------------

    def look(self, name: str) -> View:
        """The queue as it is now; empty, if there is no such lock."""
        path = path_of(name)
        children, found = self._session.send(*look_requests(path))
        return view_of(path, children, found)

    def look_after_all(self, name: str) -> View:
        """The same, after all that was ever sent: this server may be behind the one that it was sent to."""
        path = path_of(name)
        _, children, found = self._session.send(lambda client: client.sync_async(path), *look_requests(path))
        return view_of(path, children, found)

    def head(self, view: View) -> Head | None:
        """The first in the queue. None: it has gone meanwhile."""
        return self.read(view, view.queue[0])

    def read(self, view: View, child: Child) -> Head | None:
        """What one in the queue says. None: it has gone meanwhile."""
        path = view.child_path(child)
        (found,) = self._session.send(get_request(path))
        return self.head_of(path, found)

    def head_of(self, path: str, found: Any) -> Head | None:
        if isinstance(found, NoNodeError):
            return None
        data, stat = found
        says = record(data, path)
        return Head(path, says, stat, self.clock.remaining(stat, says.expire))

    def touch(self) -> None:
        """Learn what time it is there."""
        (stat,) = self._session.send(lambda client: client.set_async(ROOT, b""))
        if not isinstance(stat, NoNodeError):
            self.clock.observe(stat)

    # Joining ------------------------------------------------------------------------------------------------------

    def join(self, claim: Claim) -> View:
        """Take a place at the end of the queue, and look who stands in it."""
        path, digest = path_of(claim.name), digest_of(claim.token)
        if claim.token in self._places.uncertain:
            view = self.look_after_all(claim.name)
            child = view.find(digest)
            if child is not None:  # made, though we never heard of it
                self._adopt(claim, view, child)
                return view

        def create(client: Client) -> Any:
            value = ZooRecord(CLAIMED, claim.expire, claim.holder).dumps()
            self._places.uncertain.add(claim.token)
            return client.create_async(f"{path}/{digest}_", value, ephemeral=True, sequence=True, include_data=True)

        asked, made = now(), list[Request]()
        for make_root in (False, False, True):
            if make_root:
                self._make_root()
            *_, created, children, found = self._session.send(*made, create, *look_requests(path))
            if not isinstance(created, NoNodeError):
                break
            made = [self._make(path)]
        if isinstance(created, ZookeeperError):
            raise BackendUnavailable(f"{self._session.address.name} did not make {path}.") from created
        node_path, stat = created
        self.clock.observe(stat)
        (child,) = in_order([node_path.rpartition("/")[2]])
        self._places.add(Place(claim, child, CLAIMED, ZooLease(claim.expire, stat, asked)))
        return view_of(path, children, found)

    def _adopt(self, claim: Claim, view: View, child: Child) -> None:
        found = self.read(view, child)
        if found is not None:
            # Of its lease it is not known when it began: it does not hold by that, nor does it wait before it says so.
            self._places.add(Place(claim, child, UNKNOWN, lease_of(found, view.version)))

    def _make(self, path: str) -> Request:
        """The lock's own node. Its base is the time there, as we know it: that of a clock that was set back is less."""
        value = Mark(int(self.clock.now_ms() * 1000) if self.clock.is_fresh(60.0) else 0).dumps()
        return lambda client: client.create_container_async(path, value)

    def _make_root(self) -> None:
        (made,) = self._session.send(lambda client: client.create_async(ROOT))
        if isinstance(made, NoNodeError):
            chroot = self._session.address.chroot
            raise ConfigurationError(
                f"{self._session.address.name}: there is no node {chroot}, the chroot that LOCATION names. Create it, "
                f"with zkCli.sh: create {chroot}"
            ) from made

    # Having it ----------------------------------------------------------------------------------------------------

    def grant(self, place: Place, view: View, asked: float) -> Granted | None:
        """We are the first: begin the lease, unless it has begun when the node was made. None: we are not any more."""
        fence, lease, mark = view.fence(place.child), place.lease, view.mark
        if place.granted and self.clock.remaining(lease.stat, lease.expire) > 0:
            return Granted(fence, lease.since)
        persist = lease.ephemeral and place.claim.expire > self._session.outlives
        time_us = int(self.clock.now_ms() * 1000)
        if fence < time_us - MAX_LAG:
            mark = mark._replace(base=time_us - place.child.number)
        place.mark, place.taken = mark.dumps(), lease.stat.ctime
        seen = lease._replace(expire=place.claim.expire, lock_version=view.version)
        if persist or place.state != CLAIMED or mark != view.mark:
            place.taken = time_us // 1000
            says = place.says(HELD, seen.expire)
            # Whatever our own node says: it may have been offered the lease meanwhile.
            changed = place.mark if persist or mark != view.mark else None
            request = write(place.path, says, lock=view.version, persist=persist, mark=changed)
            (answers,) = self._session.send(request)
            if not committed(answers):
                return None
            seen = written(answers, seen._replace(since=asked))
            self.clock.observe(seen.stat)
        place.lease, place.granted, place.state = seen, True, HELD
        return Granted(mark.base + place.child.number, seen.since)

    # Waiting ------------------------------------------------------------------------------------------------------

    def wait_behind(self, place: Place, view: View, ahead: list[Child], join: bool) -> Busy | None:
        """Stand behind them, and be woken when the one in front goes; None: things have changed, look again."""
        first, before = view.child_path(ahead[0]), view.child_path(ahead[-1])
        requests: list[Request] = [get_request(first)]
        if join and place.watching != before:
            callback = self._places.watch(place, before)
            # A watch on its children, of which it has none, tells of its end alone, not of each renewal.
            requests.append(lambda client: client.get_children_async(before, callback))
        mark_waiting = join and place.state != WAITING
        if mark_waiting:
            # Before it is asked: if the answer is lost, others may take it for one that waits, and it may be the first.
            place.state, data = UNKNOWN, place.says(WAITING, place.claim.expire)
            requests.append(lambda client: client.set_async(place.path, data))
        answers = self._send_watching(before, *requests)
        if mark_waiting and not isinstance(answers[-1], NoNodeError):
            place.state, place.lease = WAITING, place.lease._replace(stat=answers[-1])
            self.clock.observe(answers[-1])
        if any(isinstance(answer, NoNodeError) for answer in answers):
            return None
        head = self.head_of(first, answers[0])
        head = head and self.judge(view, head)
        return None if head is None else self._busy(place, head, len(ahead), join)

    def _send_watching(self, before: str, *requests: Request) -> list[Any]:
        """Where an answer is missing, the watch may be: it must not be taken for one that is out."""
        try:
            answers = self._session.send(*requests)
        except DistLockError:
            self._places.changed(before)
            raise
        if any(isinstance(answer, NoNodeError) for answer in answers):
            self._places.changed(before)
        return answers

    def _busy(self, place: Place, head: Head, ahead: int, join: bool) -> Busy:
        remaining = max(MIN_RECHECK, head.remaining)
        # Asleep until the lease ends, but not for longer than one of its own: then nothing that happens to the holder,
        # or to those in front, costs more than that.
        recheck_after = min(remaining, place.claim.expire) if join else remaining
        recheck_after += stagger(ahead - 1, place.claim.expire)
        held_for = max(0.0, (self.clock.now_ms() - (head.record.taken or head.stat.ctime)) / 1000)
        return Busy(max(MIN_RECHECK, recheck_after), remaining, holder=head.record.holder, held_for=held_for)

    def judge(self, view: View, head: Head) -> Head | None:
        """The first in the queue, with what is left of its lease; None: that is over, and its node is removed.

        Its lease begins here if it had not begun.
        """
        if head.record.state == WAITING:
            says = head.record._replace(state=OFFERED, expire=head.record.expire * TURN, taken=int(self.clock.now_ms()))
            return self._rewrite(view, head, says)
        if head.remaining > 0 and self.clock.can_judge(head.stat):
            return head
        if not self.clock.is_fresh() or self.clock.is_behind(head.stat):
            self.touch()
        if not self.clock.can_judge(head.stat):
            return self._rewrite(view, head, head.record)
        if not self.clock.has_ended(head.stat, head.record.expire):
            return replace(head, remaining=self.clock.remaining(head.stat, head.record.expire))
        self.remove(view, head)
        if head.record.state == OFFERED:
            self._pass_over(view, head.stat.ephemeralOwner)
        return None

    def _pass_over(self, view: View, session: int) -> None:
        """One of this session did not come when it was its turn: its process is gone, and costs the next no more."""
        if session == self._session.ident:  # it is ours, and lives
            return
        paths = [view.child_path(child) for child in view.queue[1:MAX_PASSED]]
        found = [self.head_of(*one) for one in zip(paths, self._session.send(*map(get_request, paths)), strict=True)]
        theirs = [one for one in found if one is not None and one.stat.ephemeralOwner == session]
        # Of one that does not wait it is not known whether it has the lock by now: alone it does not write that.
        self._session.send(
            *[delete_as_seen(one.path, one.stat.version) for one in theirs if one.record.state == WAITING]
        )

    def remove(self, view: View, head: Head) -> None:
        """Remove the node, unless it has changed meanwhile."""

        def transaction(client: Client) -> Any:
            change = client.transaction()
            change.check(view.path, view.version)
            change.delete(head.path, head.stat.version)
            return change.commit_async()

        self._session.send(transaction)

    def _rewrite(self, view: View, head: Head, says: ZooRecord) -> Head:
        """Its lease begins now, unless something has happened to it meanwhile."""
        (answers,) = self._session.send(write(head.path, says.dumps(), head.stat.version, view.version))
        if not committed(answers):
            return replace(head, remaining=MIN_RECHECK)
        stat = answers[-1]
        self.clock.observe(stat)
        return Head(head.path, says, stat, says.expire)


def lease_of(head: Head, lock_version: int) -> ZooLease:
    """The lease of a node of ours that was read: not less than it is."""
    expire = head.record.expire
    return ZooLease(expire, head.stat, now() + head.remaining - expire, lock_version)


def view_of(path: str, children: Any, found: Any) -> View:
    if isinstance(children, NoNodeError) or isinstance(found, NoNodeError):
        return View(path, [], Mark(0), -1)
    data, stat = found
    says = mark(data, path)
    return View(path, in_order(children), says._replace(base=max(says.base, stat.ctime * 1000)), stat.version)
