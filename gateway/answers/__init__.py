"""Formats out: what is made of ended or streaming responses for APIs other than Responses.

A response of this deployment is one object, that of the Responses API. Clients of other APIs get
the same content in the form of theirs: chunks and completions of chat, completions of text,
embeddings, compactions. The forms are functions of events: no file here waits for anything, reads
the log or knows a socket.

    chat_completions   a response as a chat completion, whole or in chunks
    text_completions   the same for `POST /v1/completions`
    embeddings         vectors of several responses as one list
    compactions        the summary that `POST /v1/responses/compact` returns
    failures           a failed response as the error that a plain HTTP answer has

In: events and final objects (`tailrace.protocol.events`). Out: JSON objects. `routes` sends them.
"""
