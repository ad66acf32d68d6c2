"""The lanes' benchmark, small and in virtual time."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from jobs.domain.lanes import Kind
from jobs.domain.outcomes import Cancelled, CloseReason, Completed, FinishReason, Outcome, Rejected, Usage
from jobs.domain.policies import Precision
from trilane.bench import lanes, lanes_engines, lanes_load, lanes_plan, lanes_report, virtual_time
from trilane.bench.lanes_load import Arrival, UnreadableTrace
from trilane.bench.lanes_prompts import Prompts
from trilane.bench.lanes_replay import BACKLOG, Replay, Served
from trilane.bench.lanes_run import Runs
from trilane.commands.bench import bench
from workers.engines.sim_curves import A100_FP16, LongWork

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
HOT, WARM, COLD = ("hot",), ("warm",), ("cold",)
BOTH = ("warm", "cold")


def replayed(
    arrivals: Sequence[Arrival], backlog: Sequence[Arrival] = (), at_least_s: float = 0.0
) -> list[Served]:
    """What becomes of them on one card that is hot's and one that the other lanes drain."""

    async def main() -> list[Served]:
        runs = Runs(lanes_engines.simulated(LongWork.STEP), lambda stage, total: lambda: None)
        policies = lanes_plan.policies(Precision.FP16)
        workers = [{lane: policies[lane] for lane in each} for each in (HOT, BOTH)]
        async with runs.started(runs.cards(workers)) as cards:
            return await runs.replay("test", cards, arrivals, backlog=backlog, at_least_s=at_least_s)

    return virtual_time.run(main())


def report_of(requests: int, **given: Any) -> dict[str, Any]:
    """A small run."""
    options: dict[str, Any] = {
        "cards": 4,
        "loads": (0.8,),
        "sequences": 8,
        "shrink": 1,
        "long_work": LongWork.STEP,
    }
    stages: list[str] = []

    def watch(stage: str, total: int) -> Any:
        stages.append(stage)
        return lambda: None

    report = lanes.measure(lanes.SIM, [], requests=requests, watch=watch, **options | given)
    replays = [stage for stage in stages if stage != "starting engines"]
    assert len(replays) == len(set(replays)) + 3  # the shared card is measured twice
    return report


# --- the load ---------------------------------------------------------------------------------------


def test_traces_are_laid_over_each_other_and_kinds_follow_from_lengths(tmp_path: Path) -> None:
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    first.write_text(
        HEADER + "2023-11-16 18:15:46.6805900,512,44\n2023-11-16 18:15:48.1805900,2048,1\n", encoding="utf-8"
    )
    second.write_text(
        HEADER + "2024-05-10 00:00:00.0+00:00,2049,7\n2024-05-10 00:00:01.0+00:00,9,0\n", encoding="utf-8"
    )
    assert lanes_load.read([first, second], 9) == [
        Arrival(0.0, Kind.CHAT, 512, 44),
        Arrival(0.0, Kind.REPORT, 2049, 7),
        Arrival(1.0, Kind.CHAT, 9, 1),
        Arrival(1.5, Kind.TICKET, 2048, 1),
    ]
    assert len(lanes_load.read([first, second], 3)) == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEADER, "empty"),
        ("a,b\n1,2\n", "TIMESTAMP"),
        (HEADER + "today,1,2\n", "line 2"),
        (HEADER + "2023-11-16,1\n", "line 2"),
        (HEADER + "2023-11-16,1,1\n2023-11-16,1,1\n", "same time"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "odd.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UnreadableTrace, match=rf"odd\.csv.*{words}"):
        lanes_load.read([path], 10)


def test_the_mix_is_the_same_each_time_and_each_request_its_kind() -> None:
    mix = lanes_load.mix(500)
    assert mix == lanes_load.mix(500)
    assert mix != lanes_load.mix(500, seed=12)
    assert all(lanes_load.kind_of(arrival.prompt_tokens) is arrival.kind for arrival in mix)
    assert {arrival.lane for arrival in mix} == {"hot", "warm", "cold"}


def test_a_rate_stretches_the_time_and_a_shrunk_load_keeps_its_kinds() -> None:
    mix = lanes_load.mix(100)
    faster = lanes_load.at_rate(mix, 5.0)
    assert 100 / faster[-1].at_s == pytest.approx(5.0)
    factor = faster[50].at_s / mix[50].at_s
    assert faster[7].at_s == pytest.approx(mix[7].at_s * factor)
    small = lanes_load.shrunk(mix, 16)
    assert [each.lane for each in small] == [each.lane for each in mix]
    assert max(each.prompt_tokens for each in small) <= 500


# --- the plan ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("need", "cards", "alike", "assigned"),
    [
        ((0.7, 5.0, 0.6), 8, True, [HOT] * 2 + [BOTH] * 6),
        ((0.7, 4.0, 1.6), 8, False, [HOT] * 2 + [WARM] * 4 + [COLD] * 2),
        ((1.7, 2.0, 2.5), 8, True, [HOT] * 3 + [BOTH] * 5),
        ((0.1, 5.0, 0.1), 8, False, [HOT] + [WARM] * 6 + [COLD]),
        ((5.0, 0.1, 0.1), 4, True, [HOT] * 3 + [BOTH]),
        ((0.3, 0.5, 0.3), 3, False, [HOT, WARM, COLD]),
        ((0.3, 0.5, 0.3), 2, False, [HOT, BOTH]),
        ((0.3, 0.5, 0.3), 1, True, [(*HOT, *BOTH)]),
    ],
)
def test_cards_go_to_lanes_by_their_work(
    need: tuple[float, ...], cards: int, alike: bool, assigned: list[tuple[str, ...]]
) -> None:
    found = lanes_plan.assign(dict(zip(("hot", "warm", "cold"), need, strict=True)), cards, alike=alike)
    assert found == assigned


def test_lanes_keep_what_ships_but_cold_fills_an_engine_that_it_does_not_share_with_hot() -> None:
    limits = {lane: policy.limit for lane, policy in lanes_plan.policies(None).items()}
    assert limits == {"hot": 8, "warm": 8, "cold": 8}
    beside = lanes_plan.policies(Precision.FP16, beside_fastest=True)
    assert beside["cold"].limit == 2
    assert {policy.engine.precision for policy in beside.values()} == {Precision.FP16}


# --- the replay -------------------------------------------------------------------------------------


def test_a_request_alone_takes_its_prefill_and_its_steps() -> None:
    (served,) = replayed([Arrival(1.5, Kind.CHAT, 100, 51)])
    step_s, prefill_s = A100_FP16.step_s(1, 0, 0), A100_FP16.step_s(1, 100, 0)
    assert served.completed
    assert served.usage == Usage(100, 51)
    assert served.ttft_s == pytest.approx(prefill_s, rel=0.4)  # one step's jitter
    assert served.total_s == pytest.approx(prefill_s + 50 * step_s, rel=0.06)
    assert served.ended_at == pytest.approx(1.5 + served.total_s)


def test_each_kind_goes_to_its_lane_and_cold_does_not_delay_hot() -> None:
    chat = [Arrival(0.1 * n, Kind.CHAT, 100, 20) for n in range(10)]
    reports = [Arrival(0.0, Kind.REPORT, 6_000, 100)] * 8
    alone = replayed(chat)
    mixed = [each for each in replayed([*reports, *chat]) if each.arrival.kind is Kind.CHAT]
    assert [each.total_s for each in mixed] == pytest.approx([each.total_s for each in alone])


def test_a_backlog_never_ends_and_what_ended_of_it_comes_back() -> None:
    served = replayed([], [Arrival(0.0, Kind.REPORT, 3_000, 50)], at_least_s=60.0)
    assert len(served) > BACKLOG
    assert all(each.of_backlog and each.completed for each in served)
    assert 50 < max(each.ended_at for each in served) <= 60


def test_a_lane_that_no_worker_drains_is_an_error() -> None:
    async def main() -> None:
        replay = Replay([], lambda arrival: arrival.lane, itertools.count(), Prompts())
        await replay.run([Arrival(0, Kind.CHAT, 9, 1)])

    with pytest.raises(KeyError, match="hot"):
        virtual_time.run(main())


# --- the figures ------------------------------------------------------------------------------------


ANSWER = Completed(FinishReason.LENGTH, Usage(20, 10))


def served(kind: Kind, at_s: float, first_s: float, total_s: float, outcome: Outcome = ANSWER) -> Served:
    """One that was claimed at once."""
    return Served(Arrival(at_s, kind, 9, 1), 0, False, at_s, at_s + first_s, at_s + total_s, outcome)


def test_figures_by_kind_and_over_all() -> None:
    found = lanes_report.figures(
        [served(Kind.CHAT, 0, 0.1, 0.25), served(Kind.CHAT, 1, 0.2, 0.5), served(Kind.REPORT, 1, 1, 3)], 8
    )
    assert found["makespan_s"] == 4
    assert found["card_seconds_per_request"] == pytest.approx(8 * 4 / 3)
    assert found["output_tokens_per_s"] == pytest.approx(30 / 4)
    assert list(found["kinds"]) == ["chat", "report"]
    chat = found["kinds"]["chat"]
    assert (chat["objective_ms"], chat["attainment"]) == (300, 0.5)
    assert chat["total_ms"]["p50"] == pytest.approx(375)
    assert chat["ttft_ms"]["p99"] == pytest.approx(199)


def test_what_failed_counts_as_a_failure_and_as_nothing_else() -> None:
    refused = Rejected("prompt_too_long", "the prompt is 9 tokens long")
    closed = Cancelled(CloseReason.TIME_LIMIT)
    answered = [served(Kind.CHAT, 0, 0.1, 0.25), served(Kind.CHAT, 1, 0.1, 0.25)]
    work = [*answered, *(served(Kind.CHAT, 1, 0, 0.001, refused) for _ in range(6))]
    work.append(served(Kind.TICKET, 0, 0, 2, closed))
    found = lanes_report.figures(work, 8)
    assert found["failures"] == {"prompt_too_long": 6, "time_limit": 1}
    assert (found["requests"], found["completed"]) == (9, 2)
    assert found["throughput_per_s"] == pytest.approx(2 / 2)
    assert found["output_tokens_per_s"] == pytest.approx(20 / 2)
    assert found["card_seconds_per_request"] == pytest.approx(8 * 2 / 2)
    chat, ticket = found["kinds"]["chat"], found["kinds"]["ticket"]
    assert chat["total_ms"] == pytest.approx({"p50": 250, "p95": 250, "p99": 250})
    assert chat["ttft_ms"]["p99"] == pytest.approx(100)
    assert chat["attainment"] == pytest.approx(2 / 8)
    assert (chat["mean_prompt_tokens"], chat["mean_output_tokens"]) == (20, 10)
    assert ticket["total_ms"] == {"p50": None, "p95": None, "p99": None}
    assert lanes_report.capacity_per_s(work) == lanes_report.capacity_per_s(answered)
    assert lanes_report.per_s(work, 2.0) == pytest.approx(1.0)


def test_capacity_is_that_of_full_cards_where_there_is_enough_to_tell() -> None:
    waited = [served(Kind.CHAT, 0.5 * n, 0.1, 0.5) for n in range(10)]
    assert lanes_report.capacity_per_s(waited) == pytest.approx(2.0)
    at_once = [served(Kind.CHAT, 0, 0.1, n) for n in range(1, 5)]
    assert lanes_report.capacity_per_s(at_once) == pytest.approx(1.0)


def test_the_busy_share_counts_overlaps_once() -> None:
    times = [(0.0, 2.0), (1.0, 0.5), (1.5, 1.5), (5.0, 1.0)]
    work = [served(Kind.CHAT, at_s, 0.1, total_s) for at_s, total_s in times]
    assert lanes_report.busy_share(work, 8.0) == pytest.approx(4 / 8)


# --- the whole --------------------------------------------------------------------------------------


def test_one_run_compares_both_and_gives_the_same_figures_again() -> None:
    report = report_of(40)
    assert report == report_of(40)
    rows = {(row["queue"], row["precision"], row["load"]): row for row in report["rows"]}
    assert set(rows) == {
        (queue, precision, load)
        for queue, precision in (("single", "equal"), ("lanes", "equal"), ("lanes", "own"))
        for load in ("saturated", 0.8)
    }
    assert all(row["completed"] == row["requests"] == 40 for row in rows.values())
    for row in rows.values():
        assert row["card_seconds_per_request"] == pytest.approx(4 * row["makespan_s"] / 40)
    assert report["ratio"]["hot_alone_p99"] < report["ratio"]["hot_p99"] < 1
    assert len(report["targets"]) == 5
    assert report["failures"] == []
    assert [part["mean_prompt_tokens"] for part in report["work"]] == [
        each["mean_prompt_tokens"] for each in rows["single", "equal", 0.8]["kinds"].values()
    ]


def test_each_reading_of_the_slowdown_by_long_work_has_its_own_figures() -> None:
    step, request = (report_of(40, long_work=reading) for reading in LongWork)
    assert (step["long_work"], request["long_work"]) == ("step", "request")
    assert step["single_capacity_per_s"] < request["single_capacity_per_s"]  # its KV cache costs more


def test_work_is_measured_only_where_it_decides_on_the_cards() -> None:
    plan = report_of(40, cards=2)["plans"]["equal"]
    assert plan == {"cards": ["hot", "warm+cold"]}
    assert "work_card_s" in report_of(40, cards=3)["plans"]["equal"]


def test_without_short_work_hot_has_no_figures(tmp_path: Path) -> None:
    trace = tmp_path / "reports.csv"
    rows = [f"2023-11-16 18:15:{second:02},3000,9\n" for second in range(10)]
    trace.write_text(HEADER + "".join(rows), encoding="utf-8")
    output = tmp_path / "report.json"
    run = CliRunner().invoke(bench, ["lanes", "--trace", str(trace), "--cards", "4", "--json", str(output)])
    assert run.exit_code == 0, run.output
    assert "card_seconds" in run.output
    report = json.loads(output.read_text(encoding="utf-8"))
    assert set(report["ratio"]) == {"card_seconds", "card_seconds_saturated"}
    assert report["hot_alone"] == report["shared_card"] == {}


def test_a_wrong_trace_is_told_and_not_traced(tmp_path: Path) -> None:
    trace = tmp_path / "odd.csv"
    trace.write_text("a\n1\n", encoding="utf-8")
    run = CliRunner().invoke(bench, ["lanes", "--trace", str(trace)])
    assert run.exit_code == 1
    assert "odd.csv" in run.output
