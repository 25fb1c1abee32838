"""What every process agrees on: ids, records, fold, events, errors, close codes, topics (pure).

    topics       names, partitions and retention of every topic
    ids          a response id is its address in the log
    records      what is written to the topics, and how bytes become records
    fold         the reader rule: records of one response become one token sequence
    events       the fold's results become the events that clients receive
    errors       every error that a client can get
    close_codes  every WebSocket close code, and what a client does after it
    log_words    records as read from Kafka, and how the log fails

In: bytes and plain values. Out: plain values. No module here reads a clock, a socket, a file or a
random number, and none imports another package of this project.
"""
