"""The two pinned environments agree, but where vLLM forbids it."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
HELD_BACK = {"fastapi"}  # vLLM 0.32 takes none of 0.137 or newer


def pins(file: str) -> dict[str, str]:
    """The version by package."""
    lines = (ROOT / file).read_text().splitlines()
    requirements = [line.split(" ;")[0] for line in lines if line and not line.startswith("#")]
    return dict(requirement.split("==") for requirement in requirements)


def test_the_environment_with_vllm_has_all_of_the_projects() -> None:
    ours, with_vllm = pins("requirements.txt"), pins("requirements-vllm.txt")
    assert {name for name, version in ours.items() if with_vllm.get(name) != version} == HELD_BACK
    assert with_vllm.keys() > HELD_BACK
    assert not {"torchvision", "torchaudio", "torchcodec"} & with_vllm.keys()
