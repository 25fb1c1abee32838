"""Routes: the HTTP API. A file covers one noun; `table` maps paths to handlers.

A handler reads a raw request, so that clients never see an error format of the framework. It finds
the principal, calls one room below and builds the answer. It decides nothing else.

    table             which path and method goes to which handler (wiring makes it)
    create            creates responses in both dialects, `input_tokens`, `compact`
    responses         cancel, delete, input items of a response
    completions       chat completions that exist; lists: lists of both
    conversations     conversations; search: the search in them; shares: links to them
    files             uploaded files; vector_stores: stores, their files, searches
    models, health    what is offered; whether the process can take requests
    session           signing in and out of a browser; revocations: the admin API
    browsers          tickets, the page's configuration, a credential in development
    page              the built page; not_offered: parts of the API that do not exist here
    request_body      a JSON body, bounded in size and time; large_bodies: one large body at a time

In: Starlette requests. Out: responses, server-sent events. Sockets are in `sockets`; queries by id
are answered by `tailrace.web`, which the push service shares.
"""
