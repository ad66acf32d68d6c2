"""The models that requests can ask for: their lanes, how their tokens are counted, how they are routed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jobs.domain.lanes import LanePolicy
from jobs.domain.requests import Message
from jobs.settings import Settings
from jobs.tokenizer import TokenCounter
from producer.refusals import Code, Refusal
from producer.routing import Router


@dataclass(frozen=True, slots=True)
class Served:
    """A model that is served: its lanes are in rank order."""

    name: str
    in_queues: str | None  # as its queues name it
    lanes: Mapping[str, LanePolicy]
    counter: TokenCounter
    router: Router

    @classmethod
    def of(cls, settings: Settings, name: str) -> "Served":
        """A model of the settings."""
        further = settings.models.get(name)
        counter = TokenCounter(further.model_path) if further else TokenCounter.of(settings.engine)
        lanes = settings.lanes_of(name)
        return cls(name, settings.further(name), lanes, counter, Router(lanes, counter))


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is said to which model."""

    model: Served
    messages: tuple[Message, ...]


class Models:
    """The models of the settings."""

    def __init__(self, settings: Settings) -> None:
        """Load nothing yet."""
        self._first = settings.model
        self._served = {name: Served.of(settings, name) for name in settings.served}

    def find(self, name: str | None) -> Served:
        """The model of this name; None is the first. Raises `Refusal` where it is not served."""
        found = self._served.get(name or self._first)
        if found is None:
            names = ", ".join(self._served)
            raise Refusal(
                Code.UNKNOWN_MODEL,
                "No such model is served",
                field="model",
                limit=names,
                remedy=f"Leave it out, or ask for {names}.",
            )
        return found


def counts(prompts: Sequence[Prompt]) -> Iterator[int]:
    """The tokens of each prompt; those of one model are counted at once."""
    by_model: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_model.setdefault(prompt.model.name, []).append(prompt)
    counted = {
        name: iter(group[0].model.counter.count_many([prompt.messages for prompt in group]))
        for name, group in by_model.items()
    }
    return (next(counted[prompt.model.name]) for prompt in prompts)
