"""The archive: what the log said and may have forgotten, in a database.

In: records of `llm.history` and of the topic of deletions. Out: rows. The archive is a fold: all of
it follows from the topics, so it may be dropped and is built again, equal. Positions of the topics
are rows too, written in the transaction of what was folded: a kill at any moment repeats nothing
and loses nothing.

    tables         the rows, and `dump` of all of them
    migrations/    Alembic's: how the tables came to be; `migration` runs them
    database       a URL -> an engine, SQLite or PostgreSQL; begins transactions that write
    fold           one record -> what it changes for one response; pure
    folding        a batch of records -> one transaction
    follower       the topics -> batches, and tombstones of what was erased -> the topic
    reader         what gateway and push ask; needs no database library
    words, turn_texts, text_rows, text_search, text_upkeep
                   the search over conversations (docs/design/history.md)
    sql_reader     rows -> histories and lists: the answers

Only this room touches SQLAlchemy and Alembic (an import contract says so). It never decides who may
read: callers hand in the owner, and rows of others are not found. It holds texts of users, so no
line of a log shows a row.
"""
