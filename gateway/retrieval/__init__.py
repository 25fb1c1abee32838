"""Retrieval: vector stores, and searches in their files.

Two topics of the log are authoritative: the stores and their files (`llm.vector_stores`), and
passages with vectors (`llm.passages`). The vector database is a fold of them and can be rebuilt.

    vector_stores   stores and their files, folded from the log, and operations on them
    passages        passages written to the log, folded into the database, searched there
    embedder        vectors of texts, by a pool of this deployment
    ingestion       splits and embeds added files, erases deleted ones
    wiring          wires these parts
    file_search     searches, for the route and for the tool `file_search` of a request

In: files of `gateway.files`, queries. Out: records of the two topics, passages with scores. Vectors
come from requests like those of any client, so this room is above `requests`.
"""
