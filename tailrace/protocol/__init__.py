"""The words every process agrees on: ids, records, fold, events, errors, close codes, topics
(pure).

In: bytes and plain values. Out: plain values. Nothing here reads a clock, a socket, a file or a
random number, and nothing here imports another room of this project.
"""
