"""Measurements of the parts, beside those of the whole in `trilane bench`."""
