"""Requests: from a checked command to a record in the log, and what follows it there.

A client gets no answer before the broker has acknowledged the request's record. An error says what
became of the request: `outcome_unknown` that it may be in the log and is being withdrawn, every
other one that nothing was or will be written.

    submission          the way in, top to bottom: each stage makes the next record of `stages`
     admitting          Asked: admission and a shorter answer; Routed: the pool
     deciding           Placed: the place in a conversation; Decided: the model
     preparing          Built: the record, charged to its principal (charging), its prompt counted
      request_builder   history, place, id and content of the record (forks: of a fork)
      requirements      which readers and workers the record needs; pure
     appending          Appended: once for each key, in its place (request_writer: the append)
     following          the stream of the response, and who watches it
    turns, busy_turns   the place of a turn in its conversation; what waits for a running turn
    idempotency         one response for each key (idempotency_index: by the log alone; earlier:
                        as a submission looks for one)
    token_counts        the length of a prompt, where it can be known before anything is written
    withdrawals         takes back what no client was told of
    expiry              ends requests that no worker claims, some time after their deadline
    search_port         what a request needs of `retrieval`, which stands above this room
    stream_keeper       follows responses to their end, with or without a connection
    rerouting           sends a response to another pool where its own cannot answer
    choices             several answers to one request, followed as one
    wiring              makes a submission of its parts

In: `parsing.command.Create` and a principal. Out: a record of `llm.requests.*`, and a
`responses.response_stream.ResponseStream`. Nothing here knows HTTP or WebSockets.
"""
