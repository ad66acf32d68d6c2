"""The run itself: chat alone, then reports, and beside them tickets and the same chat turns."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import httpx

from jobs import secrets
from trilane.demo import work
from trilane.demo.account import Account, JobRow, Webhooks
from trilane.demo.screen import Screen
from trilane.demo.work import Body
from trilane.stack.local import Stack
from trilane.stack.receiver import Receiver

TIME_LIMIT_S = 600.0  # about ten times what two slow cores need, if they are free
WEBHOOK_LIMIT_S = 30.0
_LOOK_EVERY_S = 0.4
_ENDED = frozenset({"succeeded", "failed", "cancelled", "expired"})


def run(stack: Stack, screen: Screen, start_s: float) -> Account:
    """Send the example work to the running stack and follow it; `start_s` is how long its start took.

    Raises `httpx.HTTPError` if the API refuses a job or does not answer.
    """
    secret = secrets.new_signing_secret()
    headers = {"Authorization": f"Bearer {stack.api_key}"}
    with Receiver(secret) as receiver, httpx.Client(base_url=stack.api, headers=headers, timeout=30.0) as api:
        turns = work.examples("chat")
        reports, tickets = (
            [work.calling_back(body, receiver.url, secret) for body in work.examples(name)]
            for name in ("reports", "tickets")
        )
        demo = _Demo(api, screen, planned={"hot": 2 * len(turns), "warm": len(tickets), "cold": len(reports)})
        screen.phase(f"Chat on the idle stack: {len(turns)} turns, one after another")
        alone = demo.talk(turns, "Conversation 1")

        screen.phase(f"{len(reports)} reports, and beside them {len(tickets)} tickets and the chat again")
        report_ids = [demo.submit(body) for body in reports]
        demo.wait(report_ids[:1], lambda status: status != "queued")
        ticket_ids = [demo.submit(body) for body in tickets]
        beside = demo.talk(turns, "Conversation 2")
        demo.wait(demo.statuses, _ENDED.__contains__)

        expected = work.callbacks([*reports, *tickets])
        receiver.wait_for(expected, WEBHOOK_LIMIT_S)
        run_s = demo.elapsed_s
        views = demo.views()
        rows = {job_id: JobRow.of(view) for job_id, view in views.items()}
        return Account(
            alone=[rows[job_id] for job_id in alone],
            reports=[rows[job_id] for job_id in report_ids],
            tickets=[rows[job_id] for job_id in ticket_ids],
            beside=[rows[job_id] for job_id in beside],
            errors={i: view["error"]["message"] for i, view in views.items() if view["error"]},
            webhooks=Webhooks(expected, len(receiver.delivered), len(receiver.verified)),
            urls={"api": stack.api, "flower": stack.flower},
            seconds={"start": round(start_s, 1), "run": round(run_s, 1)},
        )


class _Demo:
    """The jobs that were sent so far, looked at through the API as any caller would."""

    def __init__(self, api: httpx.Client, screen: Screen, planned: Mapping[str, int]) -> None:
        self._api, self._screen, self._planned = api, screen, planned
        self._begun = time.monotonic()
        self.statuses: dict[str, str] = {}
        self._lanes: dict[str, str] = {}

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._begun

    def submit(self, body: Body) -> str:
        view = self._api.post("/v1/jobs", json=body).raise_for_status().json()
        self._keep(view)
        return str(view["id"])

    def talk(self, turns: Sequence[Body], label: str) -> list[str]:
        """Send the turns one after another, each when the one before has ended."""
        ids = []
        for number, turn in enumerate(turns, start=1):
            ids.append(self.submit(work.conversation(turn, f"{label}.{number}")))
            self.wait(ids[-1:], _ENDED.__contains__)
        return ids

    def wait(self, ids: Iterable[str], reached: Callable[[str], bool]) -> None:
        """Wait until each job has reached its status, or until the run's time is over."""
        waiting = list(ids)
        while self.elapsed_s < TIME_LIMIT_S:
            for view in self._api.get("/v1/jobs", params={"limit": 100}).raise_for_status().json()["data"]:
                self._keep(view)
            self._screen.progress(self._by_lane(), self._planned, self.elapsed_s)
            if all(reached(self.statuses[job_id]) for job_id in waiting):
                return
            time.sleep(_LOOK_EVERY_S)

    def views(self) -> dict[str, Mapping[str, Any]]:
        """Each job in full."""
        return {i: self._api.get(f"/v1/jobs/{i}").raise_for_status().json() for i in self.statuses}

    def _keep(self, view: Mapping[str, Any]) -> None:
        self.statuses[view["id"]], self._lanes[view["id"]] = view["status"], view["lane"]

    def _by_lane(self) -> dict[str, list[str]]:
        """The statuses of each lane's jobs."""
        found: dict[str, list[str]] = {}
        for job_id, lane in self._lanes.items():
            found.setdefault(lane, []).append(self.statuses[job_id])
        return found
