"""The judge: reads histories and decides whether every response's tokens are whole and in order.

No token may be lost, doubled, reordered or mixed, and every watcher must hold the same text.

In: the records of a log (`source`, `history`) and transcripts of clients, workers and the fault
injector (`transcript`). `reference_fold` is a second implementation of the reader rule, and
`outcome` is the result of a response. `checks` judges the log (`response_checks` one response),
`clients` the transcripts (`watch_checks`, `request_checks`, `worker_checks`), `replicas` the
brokers' segment files. Out: a `report` with verdicts, counterexamples and figures. `command` is
`tailrace verify`.

Only `source` and `command` do I/O. Nothing here imports a service or uses the product's fold as
its own judgement.
"""
