"""The log as a worker reads it: folds of the token partitions, and what must be written.

    connections   the clients of Kafka and Redis that one worker uses
    tail          follows the token partitions; a barrier says that a fold has read far enough
     tail_state   the folds of one partition's responses
     finished     responses that have ended, in a few hundred bytes each; pure
    appends       records that must be in the log before a request's offset is finished

In: records of `llm.tokens`. Out: folds (`tailrace.protocol.fold`). Decisions about a response are
made in `serving`, by these folds alone.
"""
