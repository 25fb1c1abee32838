"""The vector database: passages of files and their vectors, searched by similarity.

In: records of `llm.passages`. Out: rows that are alike a query. The database is a fold: all of it
follows from the topic, so it may be dropped and is built again, equal. How far it has come is in it
too, and is written after what was folded: after a kill some records are folded twice, which
changes nothing, because a row's key is a digest of its record's key.

    contract       the interface of a database, and its types
    milvus         Milvus at a URL, or milvus-lite in a file: the same client

Only this room touches pymilvus (an import contract). It never decides who may read: callers
hand in the scope, which is part of the database's own filter. It holds texts of users, so no line
of a log shows a row.
"""
