"""The seam every engine stands behind: start, generate, stats, stop."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from jobs.domain.outcomes import Outcome
from jobs.domain.requests import GenerationRequest

ENGINE_DEAD = "engine_dead"  # the code of a `Retryable` that no engine of this process will make good

# What every engine honours.
BASIC_PARAMETERS = frozenset(
    {"max_tokens", "temperature", "top_p", "seed", "stop", "presence_penalty", "frequency_penalty"}
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of the stream: text and the tokens it stands for. The last, and only it, has an outcome.

    `token_ids` are those tokens by the model's vocabulary, empty where the engine does not tell.
    """

    text: str = ""
    tokens: int = 0
    outcome: Outcome | None = None
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine's own state: sequences running and waiting, shares between 0 and 1, None where unknown."""

    running: int = 0
    waiting: int = 0
    kv_usage: float | None = None
    prefix_hit_rate: float | None = None
    spec_acceptance: float | None = None
    preemptions: int = 0


class Engine(Protocol):
    """One loaded model. All methods are called from one asyncio loop.

    `precision` is what the linear layers really have. `parameters` names the fields of `Sampling` that the
    engine honours. `dead` tells that the model is lost and every request will end as `ENGINE_DEAD`: the
    process should end, and its supervisor start it anew.
    """

    name: str
    model: str
    precision: str
    device: str
    parameters: frozenset[str]
    dead: bool

    async def start(self) -> None:
        """Load and warm up; the worker takes no job before this returns."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        """Stream one answer. Closing the iterator frees the sequence within one engine step.

        A request the engine cannot serve ends in a chunk whose outcome is `Rejected` or `Retryable`;
        exceptions are bugs.
        """
        ...

    def stats(self) -> EngineStats:
        """The state now; cheap enough to ask at every admission."""
        ...

    async def stop(self) -> None:
        """Free the model. Open iterators end as `Retryable`."""
        ...
