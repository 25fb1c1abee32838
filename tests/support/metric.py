"""Metrics as Prometheus reads them."""

from __future__ import annotations

import prometheus_client


def value(name: str, **labels: str) -> float:
    """The value of a sample now; 0 for labels that nothing was counted with. The name of a counter
    ends in `_total`."""
    found = prometheus_client.REGISTRY.get_sample_value(name, labels)
    if found is None and not labels:
        raise LookupError(f"there is no metric {name}")
    return found or 0.0
