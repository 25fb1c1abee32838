"""Pipelines: a model answers the records of a topic, and the answers go to topics.

In: one YAML file per pipeline (`definition`), records of its input topic, answers of a gateway.
Out: records on its output, alert and dead-letter topics, in one transaction with the input's
offsets.

A client like any other: of the product it uses `tailrace.log` and the public API, nothing else.

    definition   what the file says         runner      a member of the pipeline's group
    templates    of prompts and conditions  partition   one input partition: ask, then commit
    rows         records in and out         asking      what is asked for a row, what comes of it
    counts       what was done              gateway     asks over HTTP, tells errors apart
    plan         what it would cost         earlier     what a replay finds in the output topic
    progress     how far it is              command     check, plan, run, status, replay, serve
    view         for administrators         analytics   Flink SQL over usage and answers
"""
