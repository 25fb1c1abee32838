"""The judge: reads histories and says whether no token was lost, doubled, reordered or mixed, and
whether every watcher holds the same text.

    history     records of the log, by response                  tenure     the reader rule once more, in another shape than `tailrace.protocol.fold`
    transcript  what clients and workers saw, in JSON lines      checks     L1-L7, R5 over one response      clients   C1-C5, R1-R4, R6
    report      verdicts, witnesses, figures                     source     the log read cold                command   `tailrace verify`

Everything but `source` and `command` is pure.
"""
