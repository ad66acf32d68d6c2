"""Runs prompts through a lane and its reference and sums up how far their answers agree."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from jobs.domain.agreement import Comparison, compare, drift, pieces

AT_ONCE = 8
Score = Callable[[Mapping[str, Any], str], float]
Pair = tuple[dict[str, Any], dict[str, Any]]
_UNSUPPORTED = "unsupported_parameter"


class Api(Protocol):
    """What the check needs of Trilane's API."""

    def submit(self, body: dict[str, Any]) -> dict[str, Any]:
        """Submit one job."""
        ...

    def end_of(self, job_id: str) -> dict[str, Any]:
        """Wait for the job to end."""
        ...


@dataclass(frozen=True, slots=True)
class Checked:
    """One request, as both lanes ended it; `comparison` None where one of them did not answer."""

    request: Mapping[str, Any]
    reference: Mapping[str, Any]
    candidate: Mapping[str, Any]
    comparison: Comparison | None


class PrecisionCheck:
    """Asks both lanes at temperature 0, a few requests at once."""

    def __init__(self, api: Api, lane: str, reference: str) -> None:
        """Compare `lane` with `reference`."""
        self._api, self._lanes = api, (reference, lane)
        self._logprobs = True

    def run(self, requests: Sequence[Mapping[str, Any]]) -> Iterable[Checked]:
        """Each request's comparison, in order. Where a lane tells no log-probabilities, all go without."""
        if requests:
            probe = self._ask({**requests[0], "max_tokens": 1})
            self._logprobs = not any((job["error"] or {}).get("code") == _UNSUPPORTED for job in probe)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            yield from pool.map(self._check, requests)

    def _check(self, request: Mapping[str, Any]) -> Checked:
        reference, candidate = self._ask(request)
        comparison = _compared(reference, candidate) if reference["result"] and candidate["result"] else None
        return Checked(request, reference, candidate, comparison)

    def _ask(self, request: Mapping[str, Any]) -> Pair:
        asked = {"kind": "chat", **request, "temperature": 0.0, "seed": 0}
        if self._logprobs:
            asked["logprobs"] = True
        jobs = [self._api.submit({**asked, "lane": lane}) for lane in self._lanes]
        reference, candidate = (self._api.end_of(job["id"]) for job in jobs)
        return reference, candidate


def report(checked: Sequence[Checked], score: Score | None, max_drop: float) -> dict[str, Any]:
    """The figures of a check.

    `drop` is how much worse the lane is: of the mean score, relative to the reference's, where there is a
    score function; else 1 less the agreement. `ok` tells that it is `max_drop` at most and that every prompt
    was answered.
    """
    pairs = [(one, one.comparison) for one in checked if one.comparison is not None]
    comparisons = [comparison for _, comparison in pairs]
    tokens = sum(comparison.tokens for comparison in comparisons)
    agreed = sum(comparison.agreed for comparison in comparisons)
    gaps = [comparison.logprob_gap for comparison in comparisons if comparison.logprob_gap is not None]
    agreement = agreed / tokens if tokens else 1.0
    scores = None
    drop = 1 - agreement
    if score is not None and pairs:
        scores = {
            "reference": statistics.fmean(score(one.request, _text(one.reference)) for one, _ in pairs),
            "candidate": statistics.fmean(score(one.request, _text(one.candidate)) for one, _ in pairs),
        }
        drop = (scores["reference"] - scores["candidate"]) / (abs(scores["reference"]) or 1.0)
    failed = [one for one in checked if one.comparison is None]
    return {
        "prompts": len(checked),
        "failed": [_failure(one) for one in failed],
        "engines": {side: sorted({_engine(getattr(one, side)) for one in checked}) for side in _SIDES},
        "exact_match": sum(comparison.exact for comparison in comparisons) / (len(comparisons) or 1),
        "agreement": agreement,
        "drift": drift(comparisons),
        "logprob_gap": statistics.fmean(gaps) if gaps else None,
        "score": scores,
        "drop": drop,
        "max_drop": max_drop,
        "ok": not failed and bool(pairs) and drop <= max_drop,
    }


_SIDES = ("reference", "candidate")


def _compared(reference: Mapping[str, Any], candidate: Mapping[str, Any]) -> Comparison:
    left, right = ((job["result"]["choices"] or [{}])[0].get("logprobs") for job in (reference, candidate))
    if left is not None and right is not None:
        logprobs = [one["logprob"] for one in left], [one["logprob"] for one in right]
        return compare([one["token"] for one in left], [one["token"] for one in right], logprobs)
    return compare(pieces(_text(reference)), pieces(_text(candidate)))


def _text(job: Mapping[str, Any]) -> str:
    return str(job["result"]["output"])


def _failure(one: Checked) -> str:
    job = next(job for job in (one.reference, one.candidate) if not job["result"])
    error = job["error"] or {"code": job["status"], "message": ""}
    return f"{job['id']} on {job['lane']}: {error['code']} {error['message']}".rstrip()


def _engine(job: Mapping[str, Any]) -> str:
    last = job["latency"][-1] if job["latency"] else {"precision": None, "engine": None}
    return f"{last['precision'] or '?'} ({last['engine'] or '?'})"
