"""The gateway: commands in.

A request is checked, limited, placed and appended to the log; its connection is answered from the
log. Rooms, top to bottom; each imports rooms below it only:

    app             the composition root: start, wiring and drain
    routes          HTTP, a file for each noun
    retrieval       vector stores and searches in files
    sockets         `WS /v1/responses`
    requests        from a checked command to a record in the log
    conversations   conversations, folded from the log
    responses       an existing response: follow, continue, change
    files, answers, load
                    large contents; formats of other APIs; admission, pools and placement
    parsing, cache  bodies become commands; Redis as a gateway uses it

In: clients' requests. Out: records of `llm.requests.*` and of the topics that clients' commands
change, and answers. A gateway generates nothing and stores nothing that the log does not have.
"""
