"""The shapes of public models, from their configurations in tests/data/model_configs."""

from pathlib import Path

from workers.planning import model_shape
from workers.planning.model_shape import ModelShape

CONFIGS = Path(__file__).parent / "data/model_configs"


def config(name: str) -> Path:
    """The file of a configuration."""
    return CONFIGS / f"{name}.json"


def shape(name: str) -> ModelShape:
    """The shape that it describes."""
    return model_shape.read(config(name))
