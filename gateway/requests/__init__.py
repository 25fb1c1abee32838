"""Requests: from a checked command to a record in the log, and what follows it there.

A client gets no answer before the broker has acknowledged the request's record. The code of an
error tells what happened to the request: with `outcome_unknown` it may be in the log and is being
withdrawn; with any other code nothing was or will be written.

    submission          the pipeline, top to bottom: each stage returns the next record of `stages`
     admitting          Arrival: admission, a shorter answer; Destination: the pool
     deciding           Placement: the place in a conversation; Decision: the model
     preparing          Draft: the record, charged to its principal (charging), its prompt counted
      request_builder   history, place, id and content of the record (forks: of a fork)
      requirements      which readers and workers the record needs; pure
     appending          LogEntry: the append, once for each key, in its place (request_writer)
     following          the stream of the response, and who watches it
    turns, busy_turns   the place of a turn in its conversation; waiting for a running turn
    idempotency         one response for each key (idempotency_index: by the log alone; earlier:
                        the earlier request of a submission)
    token_counts        the length of a prompt, where it is known before anything is written
    withdrawals         cancels requests whose acceptance no client knows
    expiry              ends requests that no worker claims, some time after their deadline
    search_port         the interface of `retrieval`, a room above this one
    stream_keeper       follows responses to their end, with or without a connection
    rerouting           sends a response to another pool where its own cannot answer
    choices             several answers to one request, followed as one
    wiring              builds a submission from its parts

In: `parsing.command.Create` and a principal. Out: a record of `llm.requests.*`, and a
`responses.response_stream.ResponseStream`. No file here depends on HTTP or WebSockets.
"""
