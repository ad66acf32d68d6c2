"""The store against a model of it that knows nothing but the domain's table of moves."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import Connection, Engine, text

from jobs.domain import clock
from jobs.domain.events import EVENT_OF_STATUS
from jobs.domain.jobs import MOVES, Move, NewJob, Status, Webhook, new_id
from jobs.domain.lanes import Kind
from jobs.domain.latency import LatencyRecord
from jobs.domain.outcomes import FinishReason, Usage
from jobs.store import claims, intake, moves, records, sweeps
from jobs.store.records import Answer, Ending

TENANT = new_id()
EVENTS = tuple(str(event) for event in EVENT_OF_STATUS.values())
WINDOW, LIVE_JOBS = 5, 2
LEASE_S, DELAY_S = 3_600.0, 3_600.0
A_DAY = timedelta(days=1)


@dataclass
class Model:
    """What one job must look like. The flags say which of its times have passed."""

    key: str | None
    payload: bytes | None
    hooked: bool
    max_attempts: int
    waits: bool
    status: Status = Status.QUEUED
    attempt: int = 0
    failures: int = 0
    redrives: int = 0
    late: bool = False
    overrun: bool = False
    latency: dict[str, str] = field(default_factory=dict)
    result: dict[str, str] = field(default_factory=dict)
    told: set[tuple[str, int]] = field(default_factory=set)

    def may(self, move: Move) -> bool:
        return self.status in MOVES[move].sources

    def ready(self) -> bool:
        return self.may(Move.CLAIM) and not self.waits

    def claimable(self) -> bool:
        return self.ready() and not self.late

    def holds(self, attempt: int) -> bool:
        return self.status is Status.RUNNING and self.attempt == attempt

    def lost(self) -> bool:
        return self.may(Move.LOSE_LEASE) and self.overrun

    def expired(self) -> bool:
        return self.status is Status.QUEUED and self.late

    def go(self, move: Move) -> None:
        """Make a move of the table; every state but a queued one is told of, once in each generation."""
        assert self.may(move)
        self.failures += MOVES[move].charges
        self.arrive(MOVES[move].target)

    def arrive(self, status: Status) -> None:
        self.status = status
        if self.hooked and status in EVENT_OF_STATUS:
            self.told.add((EVENT_OF_STATUS[status].value, self.redrives))


@dataclass(frozen=True)
class Held:
    """An attempt as its worker knows it: maybe long stale."""

    job_id: uuid.UUID
    attempt: int
    failures: int
    max_attempts: int


# What a worker can say of an attempt; None only adds its latency record.
ENDS = (Move.HAND_BACK, Move.RETRY, Move.FAIL, Move.SUCCEED, Move.EXPIRE, None)
MOSTLY_BACK = st.sampled_from([Move.HAND_BACK] * 4 + [Move.RETRY] * 3 + [Move.FAIL] * 2 + list(ENDS))


def any_job(said: Callable[[Model], bool]) -> Callable[["StoreMachine"], bool]:
    """A rule's precondition: that it has something to work on."""
    return lambda machine: any(said(job) for job in machine.jobs.values())


class StoreMachine(RuleBasedStateMachine):
    """Every rule does one thing to the store and the same to the model. Few jobs live at once, so that much
    happens to each."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine
        self.jobs: dict[uuid.UUID, Model] = {}
        self.attempts: list[Held] = []
        with self.engine.begin() as connection:
            connection.execute(text("DELETE FROM jobs"))

    def live(self) -> int:
        return sum(not job.status.terminal for job in self.jobs.values())

    def a_job(self, data: st.DataObject, said: Callable[[Model], bool]) -> uuid.UUID:
        """Mostly a job of which `said` is true, sometimes any."""
        meant = [job_id for job_id, job in self.jobs.items() if said(job)]
        return data.draw(st.sampled_from(meant * 3 + list(self.jobs)))

    def some_attempts(self, data: st.DataObject) -> list[Held]:
        """Mostly the attempts that run, sometimes stale ones."""
        running = [held for held in self.attempts if self.jobs[held.job_id].holds(held.attempt)]
        return data.draw(st.lists(st.sampled_from(running * 3 + self.attempts), min_size=1, max_size=4))

    # --- intake ------------------------------------------------------------------------------------

    @precondition(lambda self: self.live() < LIVE_JOBS)
    @rule(
        key=st.sampled_from([None, None, "k1", "k2"]),
        payload=st.sampled_from([b"one", b"another"]),
        hooked=st.booleans(),
        waits=st.sampled_from([False, False, True]),
        max_attempts=st.integers(1, 3),
    )
    def submit(self, key: str | None, payload: bytes, hooked: bool, waits: bool, max_attempts: int) -> None:
        """Submit a job; a key that was used answers its job or refuses."""
        new = new_job(key, payload, hooked, waits, max_attempts)
        used = next((job_id for job_id, job in self.jobs.items() if key and job.key == key), None)
        with self.engine.begin() as connection:
            if used is None:
                assert intake.insert(connection, new, WINDOW).created
                self.jobs[new.id] = Model(key, payload, hooked, max_attempts, waits)
            elif self.jobs[used].payload == payload:
                accepted = intake.insert(connection, new, WINDOW)
                assert (accepted.created, accepted.job.id) == (False, used)
            else:
                with pytest.raises(intake.IdempotencyConflict):
                    intake.insert(connection, new, WINDOW)

    # --- workers -----------------------------------------------------------------------------------

    @precondition(any_job(lambda job: job.ready()))
    @rule(data=st.data(), count=st.integers(1, 3), worker=st.sampled_from("AB"), overrun=st.booleans())
    def claim(self, data: st.DataObject, count: int, worker: str, overrun: bool) -> None:
        """Claim, with a lease that holds or one that has run out already."""
        wanted = [self.a_job(data, Model.ready) for _ in range(count)]
        with self.engine.begin() as connection:
            got = claims.claim(connection, wanted, worker, -1 if overrun else LEASE_S)
        assert {claim.id for claim in got} == {i for i in wanted if self.jobs[i].claimable()}
        for claim in got:
            job = self.jobs[claim.id]
            job.go(Move.CLAIM)
            job.attempt, job.overrun = job.attempt + 1, overrun
            assert (claim.attempt, claim.failures) == (job.attempt, job.failures)
            self.attempts.append(Held(claim.id, claim.attempt, claim.failures, claim.max_attempts))

    @precondition(any_job(lambda job: job.status is Status.RUNNING))
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        """Renew leases, of current attempts and of stale ones."""
        self._renew(self.some_attempts(data))

    @precondition(any_job(lambda job: job.status is Status.RUNNING))
    @rule(data=st.data())
    def record(self, data: st.DataObject) -> None:
        """Record endings in one group: current, stale and repeated ones, of one job too."""
        self._record({held: data.draw(MOSTLY_BACK) for held in self.some_attempts(data)})

    @precondition(lambda self: self.overtaken())
    @rule(data=st.data(), current=st.sampled_from([None, Move.SUCCEED]))
    def hear_from_the_dead(self, data: st.DataObject, current: Move | None) -> None:
        """A worker presumed dead comes back, alone or in one group with the attempt that runs now."""
        old, new = data.draw(st.sampled_from(self.overtaken()))
        self._renew([old])
        said: dict[Held, Move | None] = {old: data.draw(st.sampled_from(ENDS))}
        self._record(said | {new: current} if current else said)

    def overtaken(self) -> list[tuple[Held, Held]]:
        """Attempts whose jobs run as other attempts now, with those."""
        running = {held.job_id: held for held in self.attempts if self.jobs[held.job_id].holds(held.attempt)}
        return [(held, new) for held in self.attempts if (new := running.get(held.job_id, held)) != held]

    def _renew(self, wanted: list[Held]) -> None:
        with self.engine.begin() as connection:
            kept = claims.renew(connection, [(held.job_id, held.attempt) for held in wanted], LEASE_S)
        current = {held for held in wanted if self.jobs[held.job_id].holds(held.attempt)}
        assert kept == {(held.job_id, held.attempt) for held in current}
        for held in current:
            self.jobs[held.job_id].overrun = False

    def _record(self, said: dict[Held, Move | None]) -> None:
        said = {held: within_budget(held, move) for held, move in said.items()}
        with self.engine.begin() as connection:
            recorded = records.record(connection, [ending_of(held, move) for held, move in said.items()])
        expected: dict[tuple[uuid.UUID, int], Status] = {}
        for held, move in said.items():
            job, attempt = self.jobs[held.job_id], str(held.attempt)
            if move is not None and job.holds(held.attempt):
                job.go(move)
                job.waits = move is Move.RETRY
                expected[held.job_id, held.attempt] = job.status
                if move is Move.SUCCEED:
                    job.result[attempt] = output_of(held)
            job.latency.setdefault(attempt, outcome_of(move))
        assert recorded.ended == expected

    # --- tenants -----------------------------------------------------------------------------------

    @precondition(lambda self: self.live() > 1)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Cancel, whatever the state."""
        self._ask(moves.cancel, self.a_job(data, lambda job: job.may(Move.CANCEL)), Move.CANCEL)

    @precondition(any_job(lambda job: job.may(Move.REDRIVE)))
    @rule(data=st.data())
    def redrive(self, data: st.DataObject) -> None:
        """Redrive, whatever the state: a new budget and a new deadline, the attempt stays."""
        job_id = self.a_job(data, lambda job: job.may(Move.REDRIVE))
        if self._ask(moves.redrive, job_id, Move.REDRIVE):
            job = self.jobs[job_id]
            job.failures, job.redrives, job.late = 0, job.redrives + 1, False

    def _ask(
        self,
        ask: Callable[[Connection, uuid.UUID, uuid.UUID], moves.Moved | None],
        job_id: uuid.UUID,
        move: Move,
    ) -> bool:
        job = self.jobs[job_id]
        with self.engine.begin() as connection:
            assert ask(connection, new_id(), job_id) is None, "another tenant's"
            moved = ask(connection, TENANT, job_id)
        assert (moved and moved.source) == (job.status if job.may(move) else None)
        if moved:
            job.go(move)
        return moved is not None

    # --- time and the sweeps -----------------------------------------------------------------------

    @precondition(lambda self: self.times())
    @rule(data=st.data())
    def let_time_pass(self, data: st.DataObject) -> None:
        """A job's deadline, its lease, or what it waits for is over."""
        job_id, what = data.draw(st.sampled_from(self.times()))
        job = self.jobs[job_id]
        if what == "deadline":
            self._shift(job_id, "created_at", "redriven_at", "deadline")
            job.late = True
        elif what == "lease":
            self._shift(job_id, "lease_until")
            job.overrun = True
        else:
            self._shift(job_id, "due_at")
            job.waits = False

    def times(self) -> list[tuple[uuid.UUID, str]]:
        """What can be over next, deadlines seldom."""
        found = list[tuple[uuid.UUID, str]]()
        for job_id, job in self.jobs.items():
            found += [(job_id, "wait")] * 4 * (job.may(Move.CLAIM) and job.waits)
            found += [(job_id, "lease")] * 4 * (job.may(Move.LOSE_LEASE) and not job.overrun)
            found += [(job_id, "deadline")] * (not job.status.terminal and not job.late)
        return found

    def _shift(self, job_id: uuid.UUID, *columns: str) -> None:
        changes = ", ".join(f"{name} = {name} - interval '2 days'" for name in columns)
        with self.engine.begin() as connection:
            connection.execute(text(f"UPDATE jobs SET {changes} WHERE id = :id"), {"id": job_id})

    @precondition(any_job(lambda job: job.lost() or job.expired()))
    @rule()
    def sweep(self) -> None:
        """One round of the control process."""
        with self.engine.begin() as connection:
            sweeps.release_due(connection)
        with self._swept(sweeps.lose_leases, Model.lost) as lost:
            for job in lost:
                job.go(Move.LOSE_LEASE)
                if job.late:
                    job.arrive(MOVES[Move.EXPIRE].target)
                elif job.failures >= job.max_attempts:
                    job.arrive(MOVES[Move.FAIL].target)
                job.latency.setdefault(str(job.attempt), "lease_lost")
        with self._swept(sweeps.expire, Model.expired) as late:
            for job in late:
                job.go(Move.EXPIRE)

    @contextmanager
    def _swept(
        self, sweep: Callable[[Connection], list[sweeps.Swept]], meant: Callable[[Model], bool]
    ) -> Iterator[list[Model]]:
        with self.engine.begin() as connection:
            swept = sweep(connection)
        assert {s.job_id for s in swept} == {job_id for job_id, job in self.jobs.items() if meant(job)}
        yield [self.jobs[s.job_id] for s in swept]
        assert all(s.status is self.jobs[s.job_id].status for s in swept)

    # --- what must hold after every step -----------------------------------------------------------

    @invariant()
    def the_store_is_as_the_model(self) -> None:
        """One result of the attempt that won, one record an attempt, one delivery an event, and no more."""
        with self.engine.begin() as connection:
            rows = connection.execute(SNAPSHOT).all()
        assert {row.id for row in rows} == set(self.jobs)
        for row in rows:
            job = self.jobs[row.id]
            seen = (row.status, row.attempt, row.failures, row.redrives, row.latency, row.result)
            told = [tuple(pair) for pair in row.told]
            assert seen == (job.status, job.attempt, job.failures, job.redrives, job.latency, job.result)
            assert sorted(told) == sorted(job.told)
            assert (row.ended, row.leased) == (job.status.terminal, job.status is Status.RUNNING)

    @invariant()
    def the_model_keeps_the_rules(self) -> None:
        """What the table of moves promises, said without it."""
        for job in self.jobs.values():
            assert len(job.result) == (job.status is Status.SUCCEEDED)
            assert job.failures <= job.max_attempts
            assert job.status.terminal or job.failures < job.max_attempts
            ends = [g for event, g in job.told if event != EVENT_OF_STATUS[Status.RUNNING]]
            assert len(ends) == len(set(ends)), "one terminal delivery in each generation"


SNAPSHOT = text(
    """
    SELECT id, status, attempt, failures, redrives, finished_at IS NOT NULL AS ended,
           lease_until IS NOT NULL AS leased,
           (SELECT coalesce(jsonb_object_agg(attempt, outcome), '{}')
            FROM latency_records WHERE job_id = jobs.id) AS latency,
           (SELECT coalesce(jsonb_object_agg(attempt, output), '{}')
            FROM results WHERE job_id = jobs.id) AS result,
           (SELECT coalesce(jsonb_agg(jsonb_build_array(payload::jsonb ->> 'type', generation)), '[]')
            FROM webhook_deliveries WHERE job_id = jobs.id) AS told
    FROM jobs
    """
)


def new_job(key: str | None, payload: bytes, hooked: bool, waits: bool, max_attempts: int) -> NewJob:
    now = clock.now()
    return NewJob(
        new_id(),
        TENANT,
        Kind.TICKET,
        "a-model",
        "warm",
        5,
        "warm.normal",
        {"messages": []},
        12,
        deadline=now + A_DAY,
        max_attempts=max_attempts,
        not_before=now + A_DAY / 2 if waits else None,
        webhook=Webhook("https://example.com/hook", EVENTS) if hooked else None,
        idempotency_key=key,
        payload_hash=payload if key else None,
    )


def within_budget(held: Held, move: Move | None) -> Move | None:
    """A worker that has no try left fails the job instead."""
    spent = held.failures + 1 >= held.max_attempts
    return Move.FAIL if move is Move.RETRY and spent else move


def outcome_of(move: Move | None) -> str:
    return move.value if move else "closed"


def output_of(held: Held) -> str:
    return f"the answer of attempt {held.attempt}"


def ending_of(held: Held, move: Move | None) -> Ending:
    latency = LatencyRecord(outcome_of(move), "warm")
    if move is Move.SUCCEED:
        answer = Answer(output_of(held), FinishReason.STOP, Usage(12, 4))
        return Ending(held.job_id, held.attempt, move, latency, answer)
    delay_s = DELAY_S if move is Move.RETRY else None
    return Ending(held.job_id, held.attempt, move, latency, delay_s=delay_s)


def test_the_store_moves_jobs_as_the_table_of_moves_says(engine: Engine) -> None:
    with engine.begin() as connection:  # nothing here outlives the server, so no commit waits for the disk
        connection.execute(text(f"ALTER DATABASE {engine.url.database} SET synchronous_commit = off"))
    engine.dispose()

    class Machine(StoreMachine):
        def __init__(self) -> None:
            super().__init__(engine)

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=90,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
