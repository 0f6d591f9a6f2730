"""The verbs of the seam, over kazoo, as functions that any thread may call."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial

from kazoo.exceptions import NoNodeError, ZookeeperError

from ...core.backend import Busy, Claim, Granted, LockInfo, Loss
from ...core.errors import BackendUnavailable, DistLockError
from ...core.runtime import now
from ...kit.blocking_port import BlockingVerbs
from . import listing
from .lock_queue import LockQueue, lease_of
from .nodes import CLAIMED, COOLDOWN, HELD, WAITING, digest_of
from .places import Place, Places, ZooLease
from .requests import delete_as_seen, get_request, take_away, write, written
from .session import KEPT, Request, Session, committed

logger = logging.getLogger("distlock_web")

#: Nodes in front that one acquisition removes, or sees go, before it says that the lock is busy.
MAX_ROUNDS = 50
#: Locks that outlive a session by one round trip.
MAX_PARKED = 100


class ZooKeeperVerbs(BlockingVerbs):
    def __init__(self, session: Session, places: Places) -> None:
        self._session = session
        self._places = places
        self._queue = LockQueue(session, places)
        self._clock = session.clock

    # Acquire ------------------------------------------------------------------------------------------------------

    def acquire(self, claim: Claim, join: bool, memo: None) -> Granted | Busy:
        self._tidy()
        answer: Granted | Busy | None = None
        for _ in range(MAX_ROUNDS):
            answer = self._attempt(claim, join)
            if answer is not None:
                break
        if answer is None:
            answer = Busy(0.01, 0.01)
        if isinstance(answer, Busy) and not join:
            self.cancel(claim)
        return answer

    def _tidy(self) -> None:
        paths = self._places.ended()[:MAX_PARKED]  # the others at the next look
        if paths:
            self._session.send(*map(delete_as_seen, paths))
        for path in paths:
            self._places.removed(path)

    def _attempt(self, claim: Claim, join: bool) -> Granted | Busy | None:
        """One look at the queue; None: it has changed."""
        asked = now()
        view = self._queue.join(claim) if self._places.get(claim.token) is None else self._queue.look(claim.name)
        place = self._places.get(claim.token)
        if place is None or place.child not in view.queue:
            self._places.forget(claim.token)  # removed by others: its lease or its turn was over, or the session
            return None
        ahead = view.queue[: view.queue.index(place.child)]
        if ahead:
            return self._queue.wait_behind(place, view, ahead, join)
        return self._queue.grant(place, view, asked)

    def cancel(self, claim: Claim) -> None:
        """Nothing of this claim is left; if ZooKeeper does not answer, as soon as it does."""
        self._session.outage.now_or_later(partial(self._cancel, claim), KEPT)

    def _cancel(self, claim: Claim) -> None:
        place = self._places.get(claim.token)
        if place is not None:
            self._session.send(delete_as_seen(place.path))
            self._places.forget(claim.token)
            return
        uncertain = claim.token in self._places.uncertain
        view = self._queue.look_after_all(claim.name) if uncertain else self._queue.look(claim.name)
        digest = digest_of(claim.token)
        for child in [child for child in view.queue if child.digest == digest]:
            head = self._queue.read(view, child)
            if head is not None and head.record.state != COOLDOWN:
                self._session.send(delete_as_seen(head.path, head.stat.version))
        self._places.uncertain.discard(claim.token)

    # Holding ------------------------------------------------------------------------------------------------------

    def extend(self, claims: Sequence[Claim], timeout: float | None) -> list[Loss | None]:
        places = [self._held(claim) for claim in claims]
        known = [(place, claim.expire) for claim, place in zip(claims, places, strict=True) if place is not None]
        gone = self._write_leases(known, self._session.outlives, timeout)
        return [
            self._loss(claim) if place is None or place in gone else None
            for claim, place in zip(claims, places, strict=True)
        ]

    def _write_leases(
        self, wanted: Sequence[tuple[Place, float]], outlives: float, timeout: float | None = None
    ) -> set[Place]:
        """Give each so many seconds again, or what it has left, if that is more. Those that are gone are forgotten.

        A lease has several writers here: a renewal, an extension. Each compares the version that it has reckoned with,
        and the second one reckons again: else the shorter lease would be written over the longer one. What lasts
        longer than ``outlives`` becomes persistent.
        """
        gone: set[Place] = set()
        for _ in range(MAX_ROUNDS):
            if not wanted:
                return gone
            moment = now()
            leases = [_longer(place.lease, seconds, moment) for place, seconds in wanted]
            requests = [
                _begin_again(place, lease, lease.ephemeral and lease.expire > outlives)
                for (place, _), lease in zip(wanted, leases, strict=True)
            ]
            refused = []
            for one, lease, answers in zip(wanted, leases, self._session.send(*requests, timeout=timeout), strict=True):
                if committed(answers):
                    lease = written(answers, lease)
                    self._clock.observe(lease.stat)
                    self._places.learn(one[0], lease)
                else:
                    refused.append(one)
            wanted = []
            for one, found in zip(refused, self._reread(refused, timeout), strict=True):
                if found is None:
                    self._places.forget(one[0].claim.token)
                    gone.add(one[0])
                else:
                    self._places.learn(one[0], found)
                    wanted.append(one)
        raise BackendUnavailable(f"{self._session.address.name}: other threads are extending the same leases.")

    def _reread(self, refused: Sequence[tuple[Place, float]], timeout: float | None) -> Iterator[ZooLease | None]:
        """What the leases are now of which we knew an older version. None: it is not held any more."""
        paths = [path for place, _ in refused for path in (place.path, place.lock_path)]
        answers = iter(self._session.send(*map(get_request, paths), timeout=timeout) if paths else ())
        for place, _ in refused:
            node, lock = next(answers), next(answers)
            head = None if isinstance(lock, NoNodeError) else self._queue.head_of(place.path, node)
            held = head is not None and head.record.state in (CLAIMED, HELD)
            yield lease_of(head, lock[1].version) if head is not None and held else None

    def release(self, claim: Claim, cooldown: float, record: str | None) -> Loss | None:
        if self._places.was_released(claim.token):
            return None
        place = self._held(claim)
        if place is None:
            return self._loss(claim)
        sent_before, place.releasing = place.releasing, True
        place.kept_until = now() + cooldown
        request = delete_as_seen(place.path)
        if cooldown > 0:
            request = write(place.path, place.says(COOLDOWN, cooldown), persist=True, mark=place.mark)
        try:
            (answer,) = self._session.send(request)
        except BackendUnavailable:
            if cooldown <= 0:
                # Then no waiter has to wait for the rest of its lease.
                self._session.outage.postpone(partial(self._cancel, claim), after=0.0, within=KEPT)
            raise
        done = committed(answer) if cooldown > 0 else not isinstance(answer, ZookeeperError)
        if not done:
            self._places.forget(claim.token)
            loss = self._loss(claim)
            if loss == "revoked" or not sent_before or cooldown > 0:  # a cooldown would be there, had it been done
                return loss
        self._places.released(claim.token)
        if cooldown > 0:
            self._places.remove_later(place.path, cooldown)
        return None

    def _held(self, claim: Claim) -> Place | None:
        """Our place, if it has the lock and its lease is not over."""
        place = self._places.get(claim.token)
        if place is None or not place.granted:
            return None
        lease = place.lease  # looked at once: another thread may extend it
        if self._clock.remaining(lease.stat, lease.expire) <= 0 and now() >= place.kept_until:
            self._places.give_up(place)
            return None
        return place

    def _loss(self, claim: Claim) -> Loss:
        view = self._queue.look(claim.name)
        digest = digest_of(claim.token)
        if view.mark.revoked == digest:
            return "revoked"
        if not view.queue or view.queue[0].digest == digest:
            return "expired"
        head = self._queue.head(view)
        return "expired" if head is None or (head.remaining <= 0 and head.record.state != WAITING) else "taken"

    def revoke(self, name: str, fence: int) -> bool:
        for _ in range(MAX_ROUNDS):
            view = self._queue.look(name)
            if not view.queue or view.fence(view.queue[0]) != fence:
                return False
            head = self._queue.head(view)
            if head is None or self._queue.judge(view, head) is None:
                return False
            mark = view.mark._replace(revoked=view.queue[0].digest)
            (answers,) = self._session.send(take_away(head.path, view.path, view.version, mark.dumps()))
            if committed(answers):
                return True
        return False

    def inspect(self, names: Sequence[str] | None) -> list[LockInfo]:
        return listing.inspect(self._queue, self._session, names)

    # The end of the session ---------------------------------------------------------------------------------------

    def park(self) -> None:
        """What is held outlives the session: its nodes become persistent, and stay as long as their leases."""
        held = []
        for place in self._places.all():
            if not place.granted:
                self._places.forget(place.claim.token)
            elif place.lease.ephemeral and place.lease.left > 0:
                held.append(place)
        for first in range(0, len(held), MAX_PARKED):
            self._park(held[first : first + MAX_PARKED])

    def _park(self, places: list[Place]) -> None:
        try:
            self._write_leases([(place, 0.0) for place in places], outlives=0.0)
        except DistLockError as error:
            logger.warning("%d locks end early, because the session that holds them is closed: %s", len(places), error)
            for place in places:
                self._places.forget(place.claim.token)


def _begin_again(place: Place, lease: ZooLease, persist: bool) -> Request:
    mark = place.mark if persist else None
    says, versions = place.says(HELD, lease.expire), (lease.stat.version, lease.lock_version)
    return write(place.path, says, *versions, persist=persist, mark=mark)


def _longer(lease: ZooLease, seconds: float, moment: float) -> ZooLease:
    return lease._replace(expire=max(seconds, lease.left), since=moment)
