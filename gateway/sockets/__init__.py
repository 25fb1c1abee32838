"""Sockets: `WS /v1/responses`, many responses on one connection.

    endpoint         accepts sockets, counts them, runs a connection for each, ends them in a drain
    connection       moves events between one client, its lanes and the log
    client_socket    the sending side, and why a socket is to be closed
    lanes            which create runs when, and what the connection remembers; pure
    lane_slots       lanes, queues and slots of one connection; pure
    accepted_input   what a request for each model may hold, as the page is told; pure

In: frames of one client. Out: events, close codes (`tailrace.protocol.close_codes`). What a create
means is decided below, in `parsing` and `requests`: a lane knows only its size and order.
"""
