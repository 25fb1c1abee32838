"""Analytics: Flink SQL over `llm.usage` and a pipeline's output topic (docs/analytics.md).

The queries are the files in `sql/`. `twins.py` repeats them in plain Python, and `make analytics`
compares both. Results are upserts in compacted topics, which
`store.py` folds into an embedded database. A client of the log like any other: it reads topics and
writes its own, and imports no service.
"""
