"""Serving: one response from its request to DONE in the log (log rule W1 to W7).

A worker owns a response by its CLAIM in the log, and only while the fold says so. Every reader of
the log decides the same, so a response continues after any worker's death.

    running_responses   the responses that are served now, one task each
     response_task      one response, from its request to DONE
      response_state    what outlives a single claim
      takeover          what to do about a response, by its fold; pure
      claim_plan        what a claim is for, and its records; pure
      claim_runner      one claim in the log: CLAIM, barrier, END, the fold's verdict
      engine_run        one claim in the engine: resume, then generate
      claim_stop        a claim that stops before its END
      claim_state       what these three share
      attempt           the engine's steps become frames and one END
      outcome           how it ended, and the records about that
    worker_context      what all responses of this worker share
    replays             reads again what former owners wrote
    fork_sources        what a fork begins with; truncation: prompts that are too long
    cached_answers      former answers that are given again; repeated_keys: requests of one key
    stall_detector      when a silent engine is given up; warming: a first token without a claim
    history_writer, activity_writer, metering, costs
                        records about a response that has ended

In: requests, folds of `worker.log`, the engine's steps. Out: records of `llm.tokens`,
`llm.history`, `llm.activity`, usage, audit and dead letters.
"""
