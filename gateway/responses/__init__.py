"""Responses: one that exists, as its owner follows it, continues it or changes it.

    response_stream       a response as the asking connection follows it: events, end, cancel
    response_operations   cancel, delete, list the input
    context               the messages that a continued response starts from
    references            items and files that a request names, resolved
    busy                  the turn that is to be followed runs still
    remembered            what a connection keeps of a response that it may continue; pure
    log_answers           what a client is told where the log does not answer

In: ids, owners, subscriptions of `tailrace.delivery`. Out: events, messages, records of
`llm.tokens` (CANCEL) and `llm.deletions`. This room submits nothing: `requests` stands above it.
"""
