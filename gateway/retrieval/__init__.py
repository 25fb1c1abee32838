"""Retrieval: vector stores, and searches in the files that are in them.

The log has the truth in two topics: which files are in which store (`llm.vector_stores`), and their
passages with vectors (`llm.passages`). The vector database is a fold of them and can be made anew.

    vector_stores   stores and their files as the log says, and what is done to them
    passages        passages written to the log, folded into the database, searched there
    embedder        vectors of texts, by a pool of this deployment
    ingestion       cuts and embeds the files that were added, erases those that were deleted
    wiring          makes all of these of their parts
    file_search     searches, for the route and for the tool `file_search` of a request

In: files of `gateway.files`, queries. Out: records of the two topics, passages with scores. Vectors
are made by requests like those of any client, so this room stands above `requests`.
"""
