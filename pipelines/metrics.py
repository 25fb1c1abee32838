"""Metrics of a runner."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

ROWS: Final = Counter(
    "tailrace_pipeline_rows",
    "Rows in committed transactions.",
    ["pipeline", "outcome"],  # answered, skipped, dead, found
)
ALERTS: Final = Counter(
    "tailrace_pipeline_alerts", "Alerts in committed transactions.", ["pipeline"]
)
WAITED: Final = Counter(
    "tailrace_pipeline_waits",
    "Questions that have to be asked again, by reason.",
    ["pipeline", "reason"],
)
TRANSACTIONS: Final = Counter(
    "tailrace_pipeline_transactions",
    "Transactions, by outcome.",
    ["pipeline", "outcome"],  # committed, fenced, failed
)
TRANSACTION_SECONDS: Final = Histogram(
    "tailrace_pipeline_transaction_seconds", "Time that a transaction took.", ["pipeline"]
)
POSITIONS: Final = Counter(
    "tailrace_pipeline_positions_lost",
    "Committed positions that the input does not hold any more, by reason.",
    ["pipeline", "reason"],  # deleted, rolled_back
)
SINK_ROWS: Final = Counter(
    "tailrace_pipeline_sink_rows", "Rows of a sink, by outcome.", ["group", "outcome"]
)  # written, refused
WAITING: Final = Gauge(
    "tailrace_pipeline_unfinished", "Rows that were read and are not committed.", ["pipeline"]
)
