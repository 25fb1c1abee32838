"""Routes: the HTTP surface. A file is one noun; `table` says which path goes where.

A handler reads a raw request, so that no error shape of the framework ever shows, finds the
principal, calls one room below and forms the answer. It decides nothing else.

    table             which path and method goes to which handler (wiring makes it)
    create            creates responses in both dialects, `input_tokens`, `compact`
    responses         cancel, delete, input items of a response
    completions       chat completions that exist; lists: lists of both
    conversations     conversations; search: the search in them; shares: links to them
    files             uploaded files; vector_stores: stores, their files, searches
    models, health    what is offered; whether the process can take requests
    session           signing in and out of a browser; revocations: the admin API
    browsers          tickets, what the page must know, a credential in development
    page              the built page; not_offered: parts of the API that are not here
    request_body      a JSON body, bounded in size and time; large_bodies: turns at large ones

In: Starlette requests. Out: responses, server-sent events. Sockets are in `sockets`; queries by id
are answered by `tailrace.web`, which the push service shares.
"""
