"""Output formats: ended or streaming responses in the form of APIs other than Responses.

A response of this deployment is one object, that of the Responses API. Clients of other APIs get
the same content in their API's form: chat chunks and completions, text completions, embeddings,
compactions. The forms are functions of events: no file here does I/O or knows a socket.

    chat_completions   a response as a chat completion, whole or in chunks
    text_completions   the same for `POST /v1/completions`
    embeddings         vectors of several responses as one list
    compactions        the summary that `POST /v1/responses/compact` returns
    failures           a failed response as an HTTP error

In: events and final objects (`tailrace.protocol.events`). Out: JSON objects. `routes` sends them.
"""
