"""OpenAI's service tiers and our lanes: which lane a tier asks for, and which tier a lane is."""

from collections.abc import Mapping

from jobs.domain.lanes import Kind
from producer.refusals import Code, Refusal

LANE_OF_TIER: Mapping[str, str] = {
    "priority": "hot",
    "fast": "hot",
    "default": "warm",
    "auto": "warm",
    "flex": "cold",
}
TIER_OF_LANE: Mapping[str, str] = {"hot": "priority", "warm": "default", "cold": "flex"}
# A job of a tier counts as the kind whose own lane it asks for.
KIND_OF_LANE: Mapping[str, Kind] = {"hot": Kind.CHAT, "warm": Kind.TICKET, "cold": Kind.REPORT}


def lane_of(tier: str | None) -> str:
    """The lane that a tier asks for; none given is `auto`. Raises `Refusal`."""
    lane = LANE_OF_TIER.get(tier or "auto")
    if lane is None:
        raise Refusal(
            Code.UNSUPPORTED_PARAMETER,
            f"There is no service tier {tier!r:.40} here",
            field="service_tier",
            limit=", ".join(LANE_OF_TIER),
            remedy="Use one of them.",
        )
    return lane
