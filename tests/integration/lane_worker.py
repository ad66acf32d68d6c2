"""A worker process for the pool's tests: a service of sleeping jobs that tells what it does.

Its one argument is a JSON object: `redis_url`, `limits` (jobs at once, by lane), and what is not usual:
`total` (jobs at once over all lanes), `job_s`, `claim_s` (None: until the word "go" comes on standard
input), `grace_s`, `start` ("fails", "hangs", "dies").
"""

import asyncio
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from jobs import settings
from jobs.broker import Announcer
from workers import launch
from workers.lane_order import LaneOrder


def tell(event: str, **fields: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, "t": time.monotonic(), **fields}) + "\n")
    sys.stdout.flush()


class SleepingJobs:
    wake: Callable[[], None]

    def __init__(self, spec: dict[str, Any], configured: settings.Settings) -> None:
        self._spec = spec
        self._limits: dict[str, int] = spec["limits"]
        self.capacity: int = spec.get("total", sum(self._limits.values()))
        self._running = Counter[str]()
        self._lane_order = LaneOrder(list(self._limits), self._free)
        self._announcer = Announcer(configured)
        self._jobs: dict[asyncio.Task[None], tuple[str, str]] = {}
        self._draining = False
        self._message_size = 1
        self._lock = threading.Lock()

    def _free(self, lane: str) -> int:
        with self._lock:
            return min(self._limits[lane] - self._running[lane], self.capacity - sum(self._running.values()))

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._go = asyncio.Event()
        threading.Thread(target=self._listen, daemon=True).start()
        tell("starting")
        match self._spec.get("start"):
            case "fails":
                raise RuntimeError("the model file is missing")
            case "hangs":
                await asyncio.to_thread(time.sleep, 3_600)
            case "dies":
                self._loop.call_later(0.5, sys.exit, 3)
        tell("started")

    def _listen(self) -> None:
        for line in sys.stdin:
            if line.strip() == "go":
                self._loop.call_soon_threadsafe(self._go.set)

    def order(self, queues: Sequence[str]) -> list[str]:
        if self._draining:
            return []
        return list(queues) if self._spec.get("control") else self._lane_order.order(queues)

    def offer(self, queue: str, job_ids: Sequence[str], done: Callable[[], None]) -> None:
        lane = queue.split(".")[0]
        taken = 0 if self._draining else min(self._free(lane), self._lane_order.room(queue, len(job_ids)))
        if taken:
            self._lane_order.admitted(queue, taken)
        with self._lock:
            self._running[lane] += taken
        self._message_size = max(len(job_ids), 1)
        self._loop.call_soon_threadsafe(self._begin, queue, job_ids[:taken], done)
        if job_ids[taken:]:
            self._announcer.announce(queue, job_ids[taken:])

    def _begin(self, queue: str, job_ids: Sequence[str], done: Callable[[], None]) -> None:
        left = Counter(job_ids)

        def claimed(job_id: str) -> None:
            del left[job_id]
            if not left:
                done()

        for job_id in job_ids:
            tell("admitted", queue=queue, id=job_id)
            job = self._loop.create_task(self._run(queue, job_id, claimed))
            self._jobs[job] = (queue, job_id)
            job.add_done_callback(self._jobs.pop)
        if not job_ids:
            done()

    async def _run(self, queue: str, job_id: str, claimed: Callable[[str], None]) -> None:
        lane = queue.split(".")[0]
        try:
            claim_s = self._spec.get("claim_s", 0)
            await (self._go.wait() if claim_s is None else asyncio.sleep(claim_s))
            claimed(job_id)
            await asyncio.sleep(self._spec.get("job_s", 0))
            tell("ended", id=job_id)
        finally:
            with self._lock:
                self._running[lane] -= 1
            self.wake()

    def more(self, queue: str) -> int:
        return min(self._lane_order.more, self._free(queue.split(".")[0])) // self._message_size

    async def handle(self, task: str, args: list[Any]) -> None:
        tell("handled", task=task, args=args)
        if args == ["fail"]:
            raise ValueError("no such thing")

    async def drain(self, grace_s: float) -> None:
        tell("draining", grace_s=grace_s)
        self._draining = True
        if self._jobs:
            await asyncio.wait(list(self._jobs), timeout=grace_s)
        for job, (queue, job_id) in list(self._jobs.items()):
            self._announcer.announce(queue, [job_id])
            job.cancel()
        if self._jobs:
            await asyncio.wait(list(self._jobs))

    async def stop(self) -> None:
        tell("stopped")


def main() -> int:
    spec = json.loads(sys.argv[1])
    configured = settings.load(redis_url=spec["redis_url"], lease={"grace_s": spec.get("grace_s", 20.0)})
    service = SleepingJobs(spec, configured)
    if spec.get("control"):
        return launch.run_control(configured, service=service)
    return launch.run_worker(configured, lanes=list(service._limits), service=service)


if __name__ == "__main__":
    sys.exit(main())
