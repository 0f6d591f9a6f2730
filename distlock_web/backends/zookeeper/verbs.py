"""The verbs of the seam, over kazoo, as functions that any thread may call."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from kazoo.exceptions import ZookeeperError

from ...core.backend import Busy, Claim, Granted, Loss
from ...core.errors import BackendUnavailable, DistLockError
from ...core.runtime import now
from .line import Head, Line, View
from .listing import Listing
from .nodes import COOLDOWN, HELD, TRANSIT, WAITING, Child, child_node, digest_of, path_of
from .places import Place, Places
from .session import Client, Request, Session, committed

logger = logging.getLogger("distlock_web")

#: Nodes in front that one acquisition removes, or sees go, before it says that the lock is busy.
MAX_ROUNDS = 50
#: Locks that outlive a session by one round trip.
MAX_PARKED = 100


class ZooKeeperVerbs:
    def __init__(self, session: Session, places: Places) -> None:
        self._session = session
        self._places = places
        self._line = Line(session, places)
        self._clock = session.clock
        self.inspect = Listing(session, self._line).inspect

    # Acquire ------------------------------------------------------------------------------------------------------

    def acquire(self, claim: Claim, join: bool, position: int) -> Granted | Busy:
        self._places.tidy()
        answer: Granted | Busy | None = None
        for _ in range(MAX_ROUNDS):
            answer = self._attempt(claim, join)
            if answer is not None:
                break
        if answer is None:
            answer = Busy(0.01, 0.01, position)
        if isinstance(answer, Busy) and not join:
            self._places.discard(claim.token)
        return answer

    def _attempt(self, claim: Claim, join: bool) -> Granted | Busy | None:
        """One look at the line; None: it has changed."""
        asked = now()
        view = self._line.join(claim) if self._places.get(claim.token) is None else self._line.look(claim.name)
        place = self._places.get(claim.token)
        if place is None or place.child not in view.line:
            self._places.forget(claim.token)  # removed by others: its lease or its turn was over, or the session
            return None
        ahead = view.line[: view.line.index(place.child)]
        if ahead:
            return self._line.wait_behind(place, view, ahead, join)
        return self._line.grant(place, view, asked)

    def cancel(self, claim: Claim) -> None:
        place = self._places.get(claim.token)
        if place is not None:
            self._places.forget(claim.token)
            self._delete(place)
            return
        self._places.remove_when_made(claim.token)
        view, digest = self._line.look(claim.name), digest_of(claim.token)
        for child in [child for child in view.line if child.digest == digest]:
            head = self._line.read(view, child)
            if head is not None and head.record.state != COOLDOWN:
                self._session.send(partial(_delete_as_seen, head))

    # Holding ------------------------------------------------------------------------------------------------------

    def extend(self, claims: Sequence[Claim], timeout: float | None) -> list[Loss | None]:
        places = [self._held(claim) for claim in claims]
        moment = now()
        expires = [
            0.0 if place is None else max(claim.expire, place.since + place.expire - moment)
            for claim, place in zip(claims, places, strict=True)
        ]
        known = [(place, expire) for place, expire in zip(places, expires, strict=True) if place is not None]
        answers = iter(self._session.send(*[self._renewal(*one) for one in known], timeout=timeout) if known else [])
        losses: list[Loss | None] = []
        for claim, place, expire in zip(claims, places, expires, strict=True):
            lost = place is None or not self._renewed(place, expire, moment, next(answers))
            losses.append(self._loss(claim) if lost else None)
        return losses

    def _renewal(self, place: Place, expire: float) -> Request:
        data = place.says(HELD, expire)
        if not place.ephemeral or expire <= self._session.outlives:
            return lambda client: client.set_async(place.path, data)
        return persist(place, data)

    def _renewed(self, place: Place, expire: float, since: float, answer: Any) -> bool:
        if isinstance(answer, ZookeeperError) or (isinstance(answer, list) and not committed(answer)):
            self._places.forget(place.claim.token)
            return False
        if isinstance(answer, list):  # it has become persistent
            place.ephemeral = False
            (answer,) = self._session.send(lambda client: client.exists_async(place.path))
            if answer is None:
                return False
        place.stat, place.since, place.expire = answer, since, expire
        self._clock.observe(answer, since)
        return True

    def release(self, claim: Claim, cooldown: float) -> Loss | None:
        if self._places.was_released(claim.token):
            return None
        place = self._held(claim)
        if place is None:
            return self._loss(claim)
        sent_before, place.releasing = place.releasing, True
        if cooldown > 0:
            data = place.says(COOLDOWN, cooldown)
            (answer,) = self._session.send(persist(place, data))
            done = committed(answer)
        else:
            done = not isinstance(self._delete(place), ZookeeperError)
        if not done:
            self._places.forget(claim.token)
            loss = self._loss(claim)
            if loss == "revoked" or not sent_before:
                return loss
        self._places.released(claim.token)
        if cooldown > 0:
            self._places.remove_later(place.path, cooldown)
        return None

    def _delete(self, place: Place) -> Any:
        """Remove our node now; if nobody answers, later."""
        try:
            (answer,) = self._session.send(lambda client: client.delete_async(place.path))
        except BackendUnavailable:
            self._places.remove_later(place.path, 0.0)
            raise
        return answer

    def _held(self, claim: Claim) -> Place | None:
        """Our place, if it has the lock and its lease is not over."""
        place = self._places.get(claim.token)
        if place is None or not place.granted:
            return None
        if self._clock.remaining(place.stat, place.expire) <= 0:
            self._places.discard(claim.token)
            return None
        return place

    def _loss(self, claim: Claim) -> Loss:
        view = self._line.look(claim.name)
        digest = digest_of(claim.token)
        if view.mark.revoked == digest:
            return "revoked"
        if not view.line or view.line[0].digest == digest:
            return "expired"
        head = self._line.head(view)
        return "expired" if head is None or (head.remaining <= 0 and head.record.state != WAITING) else "taken"

    # Changing hands -----------------------------------------------------------------------------------------------

    def detach(self, claim: Claim, transit: str, seconds: float) -> Loss | None:
        place = self._held(claim)
        digest = digest_of(transit)
        if place is not None:
            path = f"{path_of(claim.name)}/{child_node(digest, place.child.number)}"
            (answer,) = self._session.send(exchange(place.path, path, place.says(TRANSIT, seconds)))
            self._places.forget(claim.token)
            if committed(answer):
                self._places.remove_later(path, seconds)
                return None
        if self._line.look(claim.name).find(digest) is not None:
            return None  # the first answer did not come
        return self._loss(claim)

    def attach(self, claim: Claim, transit: str) -> Granted | None:
        since = now()
        view = self._line.look(claim.name)
        mine = view.find(digest_of(claim.token))
        if mine is not None:
            return self._attached_before(claim, view, mine, since)
        child = view.find(digest_of(transit))
        head = self._line.head(view) if child is not None and child == view.line[0] else None
        if child is None or head is None or head.record.state != TRANSIT:
            return None
        if self._line.judge(view, head) is None:
            return None  # too late
        new = Child(child_node(digest_of(claim.token), child.number), digest_of(claim.token), child.number)
        place = Place(claim, new, claim.expire <= self._session.outlives, claim.expire, None, HELD, True, since)
        place.taken, place.mark = head.record.taken, view.mark.dumps()
        answers, stat = self._session.send(
            exchange(head.path, place.path, place.says(HELD, claim.expire), place.ephemeral),
            lambda client: client.exists_async(place.path),
        )
        if not committed(answers) or stat is None:
            return None
        self._clock.observe(stat, since)
        place.stat = stat
        self._places.add(place)
        return Granted(view.fence(child), since)

    def _attached_before(self, claim: Claim, view: View, mine: Child, since: float) -> Granted | None:
        """A second copy; it may have been extended since."""
        place = self._places.get(claim.token)
        if place is None:
            found = self._line.read(view, mine)
            if found is None:
                return None
            place = Place(claim, mine, found.stat.ephemeralOwner != 0, found.record.expire, found.stat, HELD, True)
            place.since, place.taken, place.mark = since - found.record.expire, found.record.taken, view.mark.dumps()
            self._places.add(place)
        if self.extend([claim], None) != [None]:
            return None
        return Granted(view.fence(mine), since)

    def revoke(self, name: str, fence: int) -> bool:
        for _ in range(MAX_ROUNDS):
            view = self._line.look(name)
            if not view.line or view.fence(view.line[0]) != fence:
                return False
            head = self._line.head(view)
            if head is None or self._line.judge(view, head) is None:
                return False
            mark = view.mark._replace(revoked=view.line[0].digest)
            (answers,) = self._session.send(_take_away(head.path, view, mark.dumps()))
            if committed(answers):
                return True
        return False

    # The end of the session ---------------------------------------------------------------------------------------

    def park(self) -> None:
        """What is held outlives the session: its nodes become persistent, and stay as long as their leases."""
        held = []
        for place in self._places.all():
            if not place.granted:
                self._places.forget(place.claim.token)
            elif place.ephemeral and place.since + place.expire > now():
                held.append(place)
        for first in range(0, len(held), MAX_PARKED):
            self._park(held[first : first + MAX_PARKED])

    def _park(self, places: list[Place]) -> None:
        requests = [persist(place, place.says(HELD, place.since + place.expire - now())) for place in places]
        try:
            parked = self._session.send(*requests)
        except DistLockError as error:
            logger.warning("%d locks end with the session that has them, which is closed: %s", len(places), error)
            parked = [[error]] * len(places)
        for place, answers in zip(places, parked, strict=True):
            place.ephemeral = not committed(answers)
            if place.ephemeral:
                self._places.forget(place.claim.token)


def _take_away(path: str, view: View, mark: bytes) -> Request:
    def transaction(client: Client) -> Any:
        change = client.transaction()
        change.delete(path)
        change.set_data(view.path, mark, view.version)
        return change.commit_async()

    return transaction


def _delete_as_seen(head: Head, client: Client) -> Any:
    return client.delete_async(head.path, head.stat.version)


def persist(place: Place, data: bytes) -> Request:
    """The node of the holder is made anew, for it has to outlive the session; its versions begin again.

    Whoever has seen the one before has seen an older version of the lock's own node: see ``Line.remove``.
    """

    def transaction(client: Client) -> Any:
        change = client.transaction()
        change.delete(place.path)
        change.create(place.path, data)
        change.set_data(path_of(place.claim.name), place.mark)
        return change.commit_async()

    return transaction


def exchange(old: str, new: str, data: bytes, ephemeral: bool = False) -> Request:
    """One node goes and another comes in its place, at once: nobody behind it sees the line without a head."""

    def transaction(client: Client) -> Any:
        change = client.transaction()
        change.delete(old)
        change.create(new, data, ephemeral=ephemeral)
        return change.commit_async()

    return transaction
