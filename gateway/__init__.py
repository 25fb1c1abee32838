"""The gateway: commands in.

A request is checked, limited, placed and appended to the log; the connection that asked is answered
from the log. Rooms, top to bottom; each imports rooms below it only:

    app             what a gateway is made of, how it starts and drains
    routes          HTTP, a file for each noun
    retrieval       vector stores and searches in files
    sockets         `WS /v1/responses`
    requests        from a checked command to a record in the log
    conversations   conversations as the log says
    responses       a response that exists: followed, continued, changed
    files, answers, load
                    contents kept apart; formats of other APIs; admission, pools and places
    parsing, cache  bodies become commands; Redis as a gateway uses it

In: clients' requests. Out: records of `llm.requests.*` and of the topics that clients' commands
change, and answers. A gateway generates nothing and keeps nothing that the log does not have.
"""
