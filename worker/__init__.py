"""The worker: takes requests from the log, runs the engine, writes tokens to the log.

    app               what a worker is made of, how it starts and leaves
    connections       clients of the log and of Redis
    worker_context    what all responses of a worker share
    request_consumer  takes requests while the engine has room
      membership      in the group: assignments and commits
      assignment      the partitions of one rebalance, their offsets and commits
      commit_tracker  which offset may be committed; pure
    servings          the responses that are served now
      serving         one response, from its request to DONE
      cached_answers  former answers that are given again
      takeover        what to do about a response, by its fold; pure
      claim_plan      what a claim is for; pure
      claim_runner    one claim, from CLAIM to END
      attempt         the engine's steps in, frames out
      generation      ids become frames and one END; pure
      outcome         what is written about a response that is DONE
    tail              folds of the token partitions; the barrier
    engines           one file per engine

In: records of `llm.requests.*` and the engine's output. Out: records of `llm.tokens`, usage, audit
and dead letters, and a heartbeat in Redis. The worker answers no client, and commits a request's
offset only when the log says DONE. The rules W1 to W7 are in docs/log-rule.md.
"""
