"""Files: large contents that live apart from the request that names them.

A record of the log is small. What is large (an image in a request, an uploaded file) is written to
a topic of its own first, in parts, and is named by its digest or id from then on.

    files            contents that came within a request, written before it
    uploads          files that clients upload by `POST /v1/files`
    passage_prompt   passages of files as a prompt shows them and as the answer lists them; pure

In: bytes and names. Out: records of `llm.files` and `llm.uploads`, and the contents again. Searches
in files are in `retrieval`; what a client may send is checked in `parsing`.
"""
