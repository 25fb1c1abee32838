"""Sinks: a pipeline's outputs in a database, for search (docs/pipelines.md).

In: a topic that a pipeline writes. Out: documents of OpenSearch or rows of ClickHouse, one for each
input record. A sink writes every record at least once and under the same key, so that a repeated
write changes nothing, and commits its position after the server's acknowledgement.
"""
