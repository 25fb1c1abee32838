"""The group: this worker's requests, and when their offsets are committed.

Workers of a pool are one Kafka consumer group. An offset is committed when the log has the end of
its response, never before, so the next worker reads the requests of a dead one again.

    request_consumer    reads requests from the log, further ahead than the engine has room for
     membership         assignments and commits of the group; what the tail must follow
      assignment        the partitions of one rebalance, their offsets and commits
    foreign_requests    single requests of other workers' partitions, read for `sharing`

In: records of `llm.requests.*`. Out: responses to serve (`worker.serving`), commits.
"""
