"""Benchmarks. Figures are comparable only within one run, as ratios of sides measured in turn."""
