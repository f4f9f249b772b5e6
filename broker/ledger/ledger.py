"""The broker's decisions as a pure state machine: callers say what came, it says what to send.

No sockets, no clock, no torch. Callers pass `now` in seconds of any monotonic clock, tell the
ledger what arrived, and then send what `decide` returns. Its state is in state.py.

    an unroll     ABSENT -> QUEUED -> LEASED -> settled with one Outcome
                              ^         |
                              +---------+  lease lost: session gone, tag not held, given back

A sampler that was declared dead and comes back may bring unrolls whose credit was given to others
meanwhile: they are kept, and no grant is made until the pacing rule holds again.
"""

from collections.abc import Iterable, Sequence

from headrace.broker.ledger.peer_claims import (
    ClaimedStream,
    abandon,
    add_copy,
    adopt_held,
    adopt_streams,
    find_lost,
    mark_trained,
)
from headrace.broker.ledger.records import Actor, Effects, Entry, Session
from headrace.broker.ledger.state import LedgerState
from headrace.broker.ledger.versions import Versions
from headrace.broker.protocol.hello_payload import HelloPayload
from headrace.broker.protocol.messages import Hello, Outcome, Payload, Range, Unroll

_FORGET_EVERY_S = 1.0
# Open unrolls that samplers bring from another broker count as running, if they come within this
# many leases of the first learner.
_CLAIMS_LEASES = 3


class BeyondCreditError(ValueError):
    """Says that a sampler sent an unroll that it was not allowed to start."""


class Ledger:
    """Decides what happens to every unroll; see the module's docstring."""

    def __init__(self, state: LedgerState, *, lease_s: float) -> None:
        self.state = state
        self.lease_s = lease_s
        self.versions = Versions(state.credit, alone=state.alone)
        self.run_complete = False  # the learner said the run is complete
        # Dispatch waits until every rank has said what it trained, or until this moment: else an
        # unroll that rank 1 has used could be given to rank 0. None = no learner has come yet.
        self._dispatch_from: float | None = None
        self._forget_at = 0.0  # when what is remembered of the dead is trimmed next

    # ---- samplers -------------------------------------------------------------------------------

    def actor_hello(
        self,
        inc: int,
        name: str,
        streams: Iterable[ClaimedStream],
        *,
        now: float,
        user: str = "",
        acting: int = 0,
    ) -> None:
        """Lets a sampler join, or join again, and adopts what it says about its streams."""
        self.state.credit.now = now
        actor = self.state.actors.pop(inc, None) or Actor(inc=inc, name=name)
        self.state.actors[inc] = actor
        if actor.user is None:
            actor.user = user
        actor.heard_at, actor.alive, actor.name = now, True, name
        adopt_streams(self.state, actor, streams, acting=acting)
        self.state.touched[inc] = actor

    def heard(self, inc: int, now: float) -> bool:
        """Notes any message of a sampler; False = unknown or thought dead, it must say HELLO."""
        self.state.credit.now = now
        actor = self.state.actors.get(inc)
        if actor is None or not actor.alive:
            return False
        actor.heard_at = now
        return True

    def unroll(self, unroll: Unroll, buffers: Sequence[Payload], nbytes: int) -> bool:
        """Takes in an unroll; True = taken, False = a copy, or no room (the sampler is told)."""
        actor = self.state.actors[unroll.inc]
        stream = actor.streams.get(unroll.stream)
        if stream is None or unroll.seq >= stream.limit:
            raise BeyondCreditError(f"{actor.name}: seq {unroll.seq} of stream {unroll.stream}")
        stream.forget_below(min(unroll.floor, unroll.seq))
        if unroll.seq - stream.floor > self.state.window:
            raise BeyondCreditError(f"{actor.name}: the floor of stream {unroll.stream} stands")
        if stream.known(unroll.seq):
            add_copy(self.state, stream, unroll, buffers, nbytes)
            return False
        if stream.unbacked and not stream.outstanding:
            raise BeyondCreditError(
                f"{actor.name}: stream {unroll.stream} has no credit for it yet"
            )
        self.state.credit.acts(stream, max(stream.acting, unroll.version_max))
        entry = Entry(stream, unroll, buffers, nbytes)
        self.state.add(entry)
        if self.state.nbytes > self.state.queue_bytes:
            # Credit keeps honest samplers below the limit; what a revived one brings may not fit.
            self.state.settle(entry, Outcome.SHED)
            return False
        self.state.queue.append(entry)
        return True

    def ping(self, inc: int, unacked: Sequence[Range], acting: int = -1) -> tuple[Range, ...]:
        """Answers a sampler's PING: acknowledges settled seqs again, returns those not here."""
        actor = self.state.actors[inc]
        if acting >= 0:
            self.acts_with(inc, acting)
        lost = find_lost(self.state, actor, unacked)
        actor.granted.update(actor.streams)
        self.state.touched[inc] = actor
        return lost

    def acts_with(self, inc: int, version: int) -> None:
        """Notes that a sampler has these weights now."""
        actor = self.state.actors.get(inc)
        for stream in actor.streams.values() if actor is not None else ():
            self.state.credit.acts(stream, version)

    def returned(self, inc: int, said: Sequence[tuple[int, int, int]]) -> None:
        """Takes a sampler's answer to RECALL: (stream, number of the question, started)."""
        actor = self.state.actors[inc]
        for number, asked, started in said:
            stream = actor.streams.get(number)
            if stream is not None and stream.asked and stream.asks == asked:
                self.state.credit.given_back(stream, started)

    def actor_bye(self, inc: int, abandoned: Sequence[Range], *, last: bool = True) -> None:
        """Lets a sampler leave: its credit returns; what it abandons ends here unless leased."""
        actor = self.state.actors.get(inc)
        if actor is None:
            return
        abandon(self.state, actor, abandoned)
        if last:
            self.state.mark_dead(actor)

    # ---- learners -------------------------------------------------------------------------------

    def learner_hello(
        self,
        hello: Hello,
        payload: HelloPayload,
        *,
        now: float,
        acted: int = -1,
        published: int = -1,
    ) -> int:
        """Lets a rank join and returns the version it must continue at; versions never go
        backwards. Sessions of another group are dropped: who may take whose place is decided
        before."""
        inc, rank, leases = hello.inc, hello.rank, self.state.leases
        rivals = leases.rivals(inc, group=hello.group, rank=rank)
        for old in list(leases.sessions.values()):
            moved = old.inc == inc and old.rank != rank
            if moved or old in rivals or old.rank >= hello.world:
                self.state.forget_session(old)
        session = leases.session(inc)
        if session is None:
            session = Session(inc, rank, hello.world, payload.want, group=hello.group, since=now)
            leases.join(session)
        session.heard_at, session.world = now, hello.world
        session.want, session.given = payload.want, 0
        self.run_complete = False
        for actor_inc, number, done in payload.trained:
            mark_trained(self.state, actor_inc, number, done)
        adopt_held(self.state, session, payload.held)
        told = self.versions.hello(
            session, hello.version, leases.sessions.values(), acted=acted, published=published
        )
        if len(leases.sessions) >= hello.world:
            self._dispatch_from = now
        elif self._dispatch_from is None:
            self._dispatch_from = now + self.lease_s
        self.state.forget_dead()
        return told

    def learner_heard(
        self, inc: int, now: float, *, version: int = 0, want: int = 0, share: int | None = None
    ) -> bool:
        """Notes any message of a learner; False = it must say HELLO. `share`: how many unrolls of
        each step come from here; None = as many as before."""
        self.state.credit.now = now
        session = self.state.leases.session(inc)
        if session is None:
            return False
        session.heard_at = now
        session.want = max(session.want, want)
        if share is not None and not session.rank and not self.state.alone:
            self.state.credit.resize(min(share, self.state.batch))
        self.versions.heard(session, version)
        return True

    def may_publish(self, inc: int, version: int) -> bool:
        """Tells whether this session may publish that version: weights come from rank 0, and no
        newer than it can have trained. One version that is far too high would make all later ones
        look old."""
        session = self.state.leases.session(inc)
        if session is None or session.rank:
            return False
        return version <= self.versions.newest_of(session)

    def done(self, inc: int, tags: Sequence[tuple[int, int]]) -> int:
        """Settles the leases that an optimiser step used; returns how many this session held."""
        entries = self.state.leases.of(inc, tags)
        self._trained(inc, len(entries))
        for entry in entries:
            self.state.settle(entry, Outcome.TRAINED)
        return len(entries)

    def nack(
        self, inc: int, tags: Sequence[tuple[int, int]], outcome: Outcome, blame: str = ""
    ) -> None:
        """Ends leases without a step: ABANDONED gives them back untouched, DUPLICATE was trained
        before. `blame`: why rejected ones are their samplers' fault; "" = they are not."""
        for entry in reversed(self.state.leases.of(inc, tags)):  # the first back is first in line
            if outcome is Outcome.ABANDONED:
                entry.attempt -= 1
                entry.home = 0  # it has no room: any rank that has some may take it
                self.state.requeue(entry)
            else:
                trained = outcome is Outcome.DUPLICATE
                self._trained(inc, int(trained))
                ending = Outcome.TRAINED if trained else Outcome.REJECTED
                self.state.settle(entry, ending, blame)

    def _trained(self, inc: int, count: int) -> None:
        session = self.state.leases.session(inc)
        if session is not None:
            session.trained += count

    def redeliver_lost(self, inc: int, tags: Sequence[tuple[int, int]], max_tag: int) -> None:
        """Delivers again what a learner should hold and, by its beat, does not."""
        lost = self.state.leases.lost(inc, tags, max_tag)
        session = self.state.leases.session(inc)
        for entry in reversed(lost):
            assert session is not None
            session.given -= 1
            self.state.redeliver(entry)

    def undelivered(self, entry: Entry) -> None:
        """Puts back in front what the socket did not take; no attempt is counted."""
        session = self.state.leases.session(entry.session)
        if session is not None:
            session.given -= 1
        entry.attempt -= 1
        self.state.requeue(entry)

    def learner_bye(self, inc: int, *, final: bool) -> bool:
        """Lets a rank leave in order; final: the run is complete. False = it had left before."""
        session = self.state.leases.session(inc)
        if session is None:
            return False
        for entry in session.leases.values():
            entry.attempt -= 1  # a clean end: nothing went wrong with these
        self.state.forget_session(session)
        self.run_complete = self.run_complete or final
        return True

    # ---- time, and what to send -----------------------------------------------------------------

    def tick(self, now: float) -> list[Actor]:
        """Expires peers that were silent for a lease; returns the samplers declared dead."""
        self.state.credit.now = now
        dead = [
            a for a in self.state.actors.values() if a.alive and now - a.heard_at > self.lease_s
        ]
        for actor in dead:
            self.state.mark_dead(actor)
        for session in list(self.state.leases.sessions.values()):
            if now - session.heard_at > self.lease_s:
                self.state.forget_session(session)
        began = self._dispatch_from
        if began is not None and now > began + _CLAIMS_LEASES * self.lease_s:
            self.state.credit.claims_left = 0
        if self.versions.first_rank and not self.run_complete:
            self.state.reclaim(self.lease_s)
        if now >= self._forget_at:
            self._forget_at = now + _FORGET_EVERY_S
            self.state.forget_dead()
            self.state.credit.tidy()
        return dead

    def dispatches(self, now: float) -> bool:
        """Tells whether learners have said what they hold, or had the time to."""
        return self._dispatch_from is not None and now >= self._dispatch_from

    def decide(self, now: float) -> Effects:
        """Returns all that became possible: deliveries, credit, replies. Call once a turn."""
        self.state.credit.now = now
        effects = Effects()
        if self.dispatches(now):
            self.state.dispatch(effects)
        if self.versions.first_rank and not self.run_complete:
            self.state.grant()
        self.state.add_replies(effects)
        return effects

    def unaccounted(self) -> int:
        """Returns received - settled - here; anything but 0 is our bug."""
        state = self.state
        return state.received - sum(state.outcomes.values()) - state.entries
