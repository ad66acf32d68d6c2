"""The precision check: the same prompts through two lanes, and how far their answers agree."""
