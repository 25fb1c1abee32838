"""Benchmarks: scripts anyone can run; figures count only as ratios measured side by side in one
run."""
