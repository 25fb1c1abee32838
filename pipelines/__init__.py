"""Pipelines: a model answers the records of a topic, and the answers go to topics.

In: one YAML file per pipeline (`definition`), records of its input topic, answers of a gateway.
Out: records on its output, alert and dead-letter topics, in one transaction with the input's
offsets.

A client like any other: of the product it uses `tailrace.log` and the public API, nothing else.

    definition   what the file says         runner          a member of the pipeline's group
    stores       what it says of stores     partition       one input partition: ask, then commit
    templates    of prompts and conditions  answerer        asks a model about one row
    rows         records in and out         storing         puts one row into a vector store
    documents    a row as a file            gateway         requests over HTTP, errors by kind
    counts       rows by outcome            start_position  where an input partition begins
    plan         an estimate of the cost    former_outputs  outputs that a replay need not repeat
    progress     lag and rate               samples         files, records, a store of examples
    sinks        outputs in databases       command         check, plan, run, status, replay, serve
    view         for administrators         analytics       Flink SQL over usage and answers
"""
