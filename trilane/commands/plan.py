"""`trilane plan`: which lane sits on which card, in what precision, how much fits, and what to change."""

import json
import sys
from collections.abc import Container, Sequence
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from jobs import settings as configuration
from jobs.domain.policies import EnginePolicy
from jobs.settings import Settings
from workers.planning import cards, model_shape
from workers.planning import plan as planning
from workers.planning.cards import Card
from workers.planning.engine_plan import EnginePlan
from workers.planning.memory import GIB, Memory
from workers.planning.model_shape import ModelShape
from workers.planning.plan import Plan

_SIZES = ("cap", "weights", "activations", "cuda_graphs", "context", "kv_cache", "one_sequence")


@click.command()
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    metavar="CARD:NUMBER",
    help="A card in place of those found: A100-80G:0, or A100-80G:0-7. May be repeated.",
)
@click.option("--model", help="The first model's folder or config.json in place of the settings'.")
@click.option(
    "--mean-prompt-tokens",
    "means",
    multiple=True,
    metavar="LANE=TOKENS",
    help="How long a lane's prompts are on average; by default the middle of its lengths.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(gpus: Sequence[str], model: str | None, means: Sequence[str], as_json: bool) -> None:
    """Plan the engines (vLLM) of all models' lanes on this machine's cards, or on cards given by hand.

    Nothing is started and nothing downloaded: each model's config.json must lie here. Exits with 1 where an
    engine does not fit.
    """
    settings = configuration.load()
    groups = planning.groups_of(settings)
    if not groups:
        raise click.ClickException("the setting workers puts every lane on no card: there is nothing to plan")
    try:
        there = cards.parse(gpus) if gpus else cards.found()
        if not there:
            raise cards.UnknownCard("no card is found on this machine: name some, as in --gpu T4:0")
        shapes = _Shapes(settings, model)
        lanes = settings.lanes
        made = planning.make(lanes, there, shapes.of, groups, _mean_tokens(means, lanes))
    except (cards.UnknownCard, model_shape.UnknownShape) as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps(_as_json(made, there, settings.model), indent=2))
    else:
        _show(made)
    sys.exit(not made.fits)


class _Shapes:
    """The shapes of what the lanes load, each read once."""

    def __init__(self, settings: Settings, model: str | None) -> None:
        self._model = str(model or settings.engine.model_path or settings.model)
        self._read: dict[str, ModelShape] = {}

    def of(self, policy: EnginePolicy) -> ModelShape:
        """The shape of the policy's checkpoint, else of the first model. Raises `UnknownShape`."""
        name = policy.checkpoint or self._model
        if name not in self._read:
            shape = model_shape.find(name)
            if shape is None:
                remedy = "in the settings" if policy.checkpoint else "with --model"
                raise model_shape.UnknownShape(
                    f"{name}: no config.json of it lies here: name its folder, or the file, {remedy}"
                )
            self._read[name] = shape
        return self._read[name]


def _mean_tokens(given: Sequence[str], lanes: Container[str]) -> dict[str, int]:
    means = {}
    for pair in given:
        lane, _, tokens = pair.partition("=")
        if lane not in lanes or not tokens.isdigit() or not int(tokens):
            raise click.UsageError(f"--mean-prompt-tokens {pair}: give a lane and tokens, as in hot=180")
        means[lane] = int(tokens)
    return means


def _show(made: Plan) -> None:
    columns = [_column(engine) for engine in made.engines]
    table = Table("", *(engine.title for engine in made.engines), box=box.SIMPLE_HEAD)
    for heading in columns[0]:
        table.add_row(heading, *(column[heading] for column in columns))
    for column in table.columns[1:]:
        column.justify = "right"
    console = Console()
    console.print(table)
    for engine in made.engines:
        console.out(f"{engine.title}: {engine.reason}", highlight=False)
        for note in engine.notes:
            console.out(f"  {note}", highlight=False)
    for line in planning.explained(made):
        console.out(line, highlight=False, style="red")


def _column(engine: EnginePlan) -> dict[str, str]:
    verdict, step = engine.verdict, engine.least_step_ms
    planned = verdict.title if verdict else ""
    if verdict and verdict.refusal:
        planned = f"{verdict.nearest}, for {verdict.precision}" if verdict.nearest else "refused"
    sizes = _sizes(engine.memory)
    return {
        "cards": engine.where,
        "precision": planned,
        **{f"{name.replace('_', ' ')}, GiB": f"{sizes[name] / GIB:.2f}" if sizes else "" for name in _SIZES},
        "longest sequence, tokens": f"{engine.max_model_len:,}",
        "such sequences that fit": str(engine.memory.sequences) if engine.memory else "",
        "admit at first": " / ".join(map(str, engine.limits.values())) if not engine.problems else "",
        "least decode step, ms": "" if step is None else f"{step:.1f}",
    }


def _sizes(memory: Memory | None) -> dict[str, int]:
    if memory is None:
        return {}
    cache = max(memory.cache, 0)
    sizes = (memory.cap, memory.weights, memory.activations, memory.graphs, memory.context, cache)
    return dict(zip(_SIZES, (*sizes, memory.sequence), strict=True))


def _as_json(made: Plan, there: Sequence[Card], first_model: str) -> dict[str, Any]:
    return {
        "fits": made.fits,
        "cards": [
            {
                "index": card.index,
                "name": card.kind.name,
                "memory_bytes": card.memory_bytes,
                "compute_capability": cards.capability_title(card.kind.capability),
                "bandwidth_gb_s": card.kind.bandwidth_gb_s,
            }
            for card in there
        ],
        "engines": [{"model": engine.model or first_model} | _engine_json(engine) for engine in made.engines],
        "problems": list(made.problems),
    }


def _engine_json(engine: EnginePlan) -> dict[str, Any]:
    memory, verdict = engine.memory, engine.verdict
    return {
        "lanes": list(engine.lanes),
        "gpus": [card.index for card in engine.cards],
        "tensor_parallel": engine.policy.tensor_parallel,
        "reason": engine.reason,
        "precision": verdict and str(verdict.precision),
        "weight_only": verdict and verdict.weight_only,
        "nearest_precision": str(verdict.nearest) if verdict and verdict.nearest else None,
        "max_model_len": engine.max_model_len,
        "memory_bytes": _sizes(memory),
        "sequences_fit": memory and memory.sequences,
        "starting_limits": dict(engine.limits),
        "least_step_ms": engine.least_step_ms,
        "fits": not engine.problems,
        "problems": list(engine.problems),
        "remedies": list(engine.remedies),
        "notes": list(engine.notes),
    }
