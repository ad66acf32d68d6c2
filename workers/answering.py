"""What stands between a lane's attempts and its engine: how a request becomes one stream of chunks."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import fields

from jobs.domain.lanes import LanePolicy
from jobs.domain.outcomes import Rejected
from jobs.domain.requests import GenerationRequest, Sampling
from workers.engines.seam import Chunk, Engine, EngineStats


class Answering:
    """A lane's engine as its attempts see it."""

    def __init__(self, engine: Engine, policy: LanePolicy) -> None:
        """Answer with `engine` as the lane's `policy` says."""
        self._engine, self._policy = engine, policy

    def stats(self) -> EngineStats:
        """The engine's own state."""
        return self._engine.stats()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        """Stream one answer; as `Engine.generate`, but parameters that the engine lacks are refused."""
        if lacking := _lacking(request.sampling, self._engine.parameters):
            yield Chunk(outcome=Rejected("unsupported_parameter", f"{lacking}: this lane's engine lacks it"))
            return
        async with aclosing(self._engine.generate(request)) as stream:
            async for chunk in stream:
                yield chunk


def _lacking(sampling: Sampling, known: frozenset[str]) -> str | None:
    """The first parameter that was given and that an engine which honours `known` would ignore."""
    given = (field.name for field in fields(Sampling) if getattr(sampling, field.name) != field.default)
    return next((name for name in given if name not in known | {"windows"}), None)
