"""Responses: an existing one, as its owner follows, continues or changes it.

    response_stream       a response as the asking connection follows it: events, end, cancel
    response_operations   cancel, delete, list the input
    context               the messages that a continued response starts from
    references            resolves items and files that a request names
    busy                  the predecessor of a turn is still running
    memory                a connection's memory of a response that it may continue; pure
    log_answers           the error for a client if the log does not answer

In: ids, owners, subscriptions of `tailrace.delivery`. Out: events, messages, records of
`llm.tokens` (CANCEL) and `llm.deletions`. This room submits nothing: `requests` stands above it.
"""
