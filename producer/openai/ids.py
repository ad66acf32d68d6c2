"""Ids as OpenAI's clients know them; the rule is in the domain, since webhooks show them too."""

from jobs.domain.openai_ids import Prefix, own, shown

__all__ = ("Prefix", "own", "shown")
