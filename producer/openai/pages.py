"""Pages of lists, as OpenAI's clients go through them with cursors."""

from collections.abc import Sequence
from typing import Generic, Literal, Protocol, Self, TypeVar, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field


@runtime_checkable
class _Listed(Protocol):
    @property
    def id(self) -> object: ...


Item = TypeVar("Item", bound=_Listed)


class Listing(BaseModel):
    """Which part of a list is shown."""

    model_config = ConfigDict(extra="forbid")

    after: str | None = Field(default=None, description="`last_id` of the page before.")
    limit: int = Field(default=20, ge=1, le=100)


class Page(BaseModel, Generic[Item]):
    """One page of a list."""

    model_config = ConfigDict(arbitrary_types_allowed=True)  # for the bound, which is no model

    object: Literal["list"] = "list"
    data: Sequence[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool

    @classmethod
    def of(cls, found: Sequence[Item], limit: int) -> Self:
        """The first `limit` of what was found; that more was found says that there is more."""
        page = found[:limit]
        return cls(
            data=page,
            first_id=str(page[0].id) if page else None,
            last_id=str(page[-1].id) if page else None,
            has_more=len(found) > limit,
        )
