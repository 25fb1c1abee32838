"""Pipelines: a model answers the records of a topic, and the answers go to topics.

In: one YAML file per pipeline (`definition`), records of its input topic, answers of a gateway.
Out: records on its output, alert and dead-letter topics, in one transaction with the input's
offsets.

A client like any other: of the product it uses `tailrace.log` and the public API, nothing else.

    definition   what the file says         runner      a member of the pipeline's group
    stores       the same of vector stores  partition   one input partition: ask, then commit
    templates    of prompts and conditions  asking      what is asked for a row, what comes of it
    rows         records in and out         storing     the same of a row for a vector store
    documents    a row as a file            gateway     asks over HTTP, tells errors apart
    counts       what was done              earlier     what a replay finds in the output topic
    plan         what it would cost         samples     files, records and a store of examples
    progress     how far it is              command     check, plan, run, status, replay, serve
    view         for administrators         analytics   Flink SQL over usage and answers
"""
