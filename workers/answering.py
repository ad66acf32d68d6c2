"""What stands between a lane's attempts and its engine: parameters, favoured phrases, guards and windows."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import fields, replace

from jobs.domain.lanes import LanePolicy
from jobs.domain.outcomes import Rejected
from jobs.domain.requests import GenerationRequest, Sampling
from jobs.tokenizer import TokenCounter
from workers.engines.seam import Chunk, Engine, EngineStats
from workers.guards import banned, favoured, phrases
from workers.guards.repetition import Repetition
from workers.guards.seam import Guard, GuardUnusable
from workers.guards.stream import guarded
from workers.windows import Windows

_OURS = frozenset({"windows"})  # parameters that no engine sees


class Answering:
    """A lane's engine as its attempts see it.

    Deadlines and time limits are not here: they close an attempt from outside (`workers.attempt`).
    """

    def __init__(self, engine: Engine, policy: LanePolicy, counter: TokenCounter | None = None) -> None:
        """Answer with `engine` as the lane's `policy` says; `counter` counts as the engine's model does.

        Reads the lists of phrases. Raises `GuardUnusable` where a guard cannot do what the policy asks.
        """
        self._engine, self._policy = engine, policy
        self._counter = counter or TokenCounter()
        guards = policy.guards
        self._banned = banned.compiled(phrases.read(guards.banned_file)) if guards.banned_file else None
        self._biases = self._favoured(guards.favoured_file) if guards.favoured_file else {}
        self._windows = Windows(policy, self._counter, self._whole)

    def _favoured(self, file: str) -> Mapping[str, float]:
        if "logit_bias" not in self._engine.parameters:
            raise GuardUnusable(
                f"phrases cannot be favoured on engine {self._engine.name}, which takes no logit_bias:"
                " leave guards.favoured_file out"
            )
        return favoured.biases(phrases.read(file), self._policy.guards.favoured_bias, self._counter)

    def stats(self) -> EngineStats:
        """The engine's own state."""
        return self._engine.stats()

    def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        """Stream one answer; as `Engine.generate`, but parameters that the engine lacks are refused."""
        return self._windows.generate(request) if self._policy.windows else self._whole(request)

    async def _whole(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        """One request to the engine, under the guards."""
        sampling = request.sampling
        if lacking := _lacking(sampling, self._engine.parameters):
            yield Chunk(outcome=Rejected("unsupported_parameter", f"{lacking}: this lane's engine lacks it"))
            return
        asked = replace(
            request,
            sampling=favoured.favouring(sampling, self._biases) if self._biases else sampling,
            stop_repetition=self._policy.guards.repetition,
        )
        stream = self._engine.generate(asked)
        if guards := self._guards():
            stream = guarded(stream, guards, sampling, lambda: self._counter.count(request.messages))
        async with aclosing(stream):
            async for chunk in stream:
                yield chunk

    def _guards(self) -> list[Guard]:
        """Fresh ones for a stream. The banned phrases come last, so that they see all that goes out."""
        policy, guards = self._policy.guards, list[Guard]()
        if policy.repetition:
            guards.append(Repetition(policy.repetition_window, policy.repetition_distinct))
        if self._banned is not None:
            guards.append(banned.Banned(self._banned))
        return guards


def _lacking(sampling: Sampling, known: frozenset[str]) -> str | None:
    """The first parameter that was given and that an engine which honours `known` would ignore."""
    given = (field.name for field in fields(Sampling) if getattr(sampling, field.name) != field.default)
    return next((name for name in given if name not in known | _OURS), None)
