"""Sockets: `WS /v1/responses`, many responses on one connection.

    endpoint         accepts sockets, runs a connection for each, closes them in a drain
    connection       moves events between one client, its lanes and the log
    client_socket    the sending side, and the reason to close a socket
    lanes            which create runs when, and the connection's memory; pure
    lane_slots       lanes, queues and slots of one connection; pure
    accepted_input   what a request for each model may contain, for the page; pure

In: frames of one client. Out: events, close codes (`tailrace.protocol.close_codes`). `parsing` and
`requests`, the rooms below, interpret a create: a lane knows only its size and order.
"""
