"""Shadows: a share of a lane's jobs is answered by the reference lane too, and compared."""

import json
from collections.abc import Callable

import pytest
from sqlalchemy import Engine, text

from jobs.domain.jobs import NewJob
from jobs.store import shadows
from jobs.store.shadows import ShadowFigures
from tests.conftest import JobMaker
from tests.processes import Processes
from tests.waiting import until

Submit = Callable[..., None]
SHARE = {"TRILANE_LANE": json.dumps({"warm": {"shadow": {"share": 1.0, "reference": "hot"}}})}


def greedy(new_job: JobMaker, temperature: float = 0.0, max_tokens: int = 16) -> NewJob:
    messages = [{"role": "user", "content": f"A question of {max_tokens} tokens at {temperature}"}]
    sampling = {"max_tokens": max_tokens, "temperature": temperature}
    return new_job(request={"messages": messages, "sampling": sampling})


def figures(engine: Engine) -> list[ShadowFigures]:
    with engine.begin() as connection:
        return list(shadows.figures(connection))


@pytest.mark.parametrize("changed", [False, True])
def test_both_answers_are_compared_and_the_shadow_is_forgotten(
    processes: Processes, submit: Submit, new_job: JobMaker, engine: Engine, changed: bool
) -> None:
    processes.control(**SHARE)
    until(lambda: "control.leads" in processes.logs(), what="a leader")
    processes.worker("warm")
    job = greedy(new_job)
    submit(job)
    until(lambda: processes.count("precision_shadows") == 1, what="a shadow")
    if changed:
        with engine.begin() as connection:
            connection.execute(text("UPDATE results SET output = output || ' and so on'"))
    processes.worker("hot")
    until(lambda: figures(engine) != [], what="a comparison")
    found = figures(engine)
    assert [(one.lane, one.reference, one.compared, one.failed) for one in found] == [("warm", "hot", 1, 0)]
    assert (found[0].exact, found[0].agreement == 1.0) == (float(not changed), not changed)
    assert processes.count("jobs") == 1, "the shadow's text is not kept"


def test_only_greedy_jobs_that_fit_the_reference_are_shadowed(
    processes: Processes, submit: Submit, new_job: JobMaker, engine: Engine
) -> None:
    processes.control(**SHARE)
    until(lambda: "control.leads" in processes.logs(), what="a leader")
    processes.worker("warm", max_model_len=8_192)
    submit(greedy(new_job, temperature=0.7), greedy(new_job, max_tokens=4_096))
    until(lambda: processes.count("results") == 2, what="both answers")
    submit(greedy(new_job))
    until(lambda: processes.count("precision_shadows") == 1, what="a shadow")
    with engine.begin() as connection:
        tokens = connection.execute(
            text("SELECT request #>> '{sampling,max_tokens}' FROM jobs WHERE lane = 'hot'")
        ).scalar_one()
    assert tokens == "16"
