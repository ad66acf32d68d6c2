"""Benchmarks: the pipeline beside a hand-written design, and an engine inside Trilane beside itself bare."""
