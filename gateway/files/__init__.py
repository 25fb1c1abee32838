"""Files: large contents that are stored apart from the request that names them.

A record of the log is small. Large contents (an image in a request, an uploaded file) are first
written to a topic of their own, in parts. From then on they are named by digest or id.

    files            contents within a request, written before it
    uploads          files that clients upload by `POST /v1/files`
    passage_prompt   passages of files in a prompt and in the answer's list; pure

In: bytes and names. Out: records of `llm.files` and `llm.uploads`, and the contents again.
`retrieval` searches in files; `parsing` checks the client's input.
"""
