"""The archive: records of the log, which the log may have lost, in a database.

In: records of `llm.history`, `llm.deletions` and `llm.conversations`. Out: rows. The archive is a
fold: all of it follows from the topics, so it may be dropped and is rebuilt, equal. Positions in
the topics are rows too, written in the transaction of the folded records: a kill at any moment
repeats nothing and loses nothing.

    tables         the rows, and `dump` of all of them
    migrations/    Alembic's: the changes of the tables; `migration` runs them
    database       a URL -> an engine, SQLite or PostgreSQL; begins transactions that write
    fold           one record -> its change to one response; pure
    folding        a batch of records -> one transaction
    follower       the topics -> batches, and tombstones of erased records -> the topic
    archived       the types of its answers; need no database library
    reader         the queries of gateway and push; opens a `sql_reader`
    words, turn_texts, text_rows, text_search, text_upkeep
                   the search over conversations (docs/design/history.md)
    sql_reader     rows -> histories and lists: the answers

Only this room touches SQLAlchemy and Alembic (an import contract). It never decides who may read:
callers pass the owner, and rows of others are not found. It holds texts of users, so no log line
shows a row.
"""
