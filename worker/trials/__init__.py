"""Trials: which fields an engine accepts, found before its worker joins the pool.

Which sampling fields and formats an engine accepts depends on its version and its arguments, and
one field may end its process. So each row of `tailrace.protocol.engine_fields` is tried once, with
a request of a few tokens.

    field_trials    tries the fields, starts the engine again where one ended it
    trial_results   the results, in a file for each engine, so that the next start tries nothing

In: an engine. Out: names of fields that are not offered, which the heartbeat publishes.
"""
