"""Sinks: what a pipeline has written, in a database where it can be searched (docs/pipelines.md).

In: a topic that a pipeline writes. Out: documents of OpenSearch or rows of ClickHouse, one for each
input record. A sink writes every record at least once and under the same key, so that a repeated
write changes nothing, and commits its position behind what the server acknowledged.
"""
