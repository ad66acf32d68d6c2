"""An engine's answer, read to its end."""

from dataclasses import dataclass

from jobs.domain.outcomes import Completed, Outcome
from jobs.domain.requests import GenerationRequest
from workers.engines.seam import Chunk, Engine


@dataclass(frozen=True)
class Answer:
    """A stream that was read to its end."""

    chunks: list[Chunk]

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def outcome(self) -> Outcome | None:
        return self.chunks[-1].outcome

    @property
    def completed(self) -> Completed:
        assert isinstance(self.outcome, Completed), self.outcome
        return self.outcome


async def collect(engine: Engine, request: GenerationRequest) -> Answer:
    """The whole stream."""
    return Answer([chunk async for chunk in engine.generate(request)])
