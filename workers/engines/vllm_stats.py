"""Keeps what vLLM's scheduler tells of itself; nothing of vLLM is imported here."""

from collections import deque
from typing import Any

from workers.engines.seam import EngineStats

_RECENT_CANDIDATES = 1_000  # speculation is judged by that many


class StatRecorder:
    """A stat logger of vLLM (its `StatLoggerBase`, by shape): `record` comes with every engine step."""

    def __init__(self) -> None:
        self._running = self._waiting = self._preemptions = 0
        self._kv_usage = 0.0
        self._prompt_tokens = self._cached_tokens = 0
        self._drafts: deque[tuple[int, int]] = deque()  # candidates and how many of them were accepted
        self._candidates = self._accepted = 0

    def record(self, scheduler_stats: Any, iteration_stats: Any, **_: Any) -> None:
        """Take the figures of one step; either may be missing."""
        if iteration_stats is not None:
            self._preemptions += iteration_stats.num_preempted_reqs
        if scheduler_stats is None:
            return
        self._running = scheduler_stats.num_running_reqs
        self._waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
        self._kv_usage = scheduler_stats.kv_cache_usage
        self._prompt_tokens += scheduler_stats.prefix_cache_stats.queries
        self._cached_tokens += scheduler_stats.prefix_cache_stats.hits
        if speculation := scheduler_stats.spec_decoding_stats:
            self._drafted(speculation.num_draft_tokens, speculation.num_accepted_tokens)

    def _drafted(self, candidates: int, accepted: int) -> None:
        self._drafts.append((candidates, accepted))
        self._candidates += candidates
        self._accepted += accepted
        while self._candidates - self._drafts[0][0] >= _RECENT_CANDIDATES:
            oldest, of_them = self._drafts.popleft()
            self._candidates -= oldest
            self._accepted -= of_them

    def log_engine_initialized(self) -> None:
        """Part of vLLM's interface."""

    def log(self) -> None:
        """Part of vLLM's interface."""

    def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None:
        """Part of vLLM's interface."""

    def forget_prefixes(self) -> None:
        """Count prefix hits anew."""
        self._prompt_tokens = self._cached_tokens = 0

    def stats(self) -> EngineStats:
        """The state after the last step. Acceptance is that of the last 1,000 candidates."""
        return EngineStats(
            running=self._running,
            waiting=self._waiting,
            kv_usage=self._kv_usage,
            prefix_hit_rate=self._cached_tokens / self._prompt_tokens if self._prompt_tokens else None,
            spec_acceptance=self._accepted / self._candidates if self._candidates else None,
            preemptions=self._preemptions,
        )
