"""Conversations: their state in the log, and operations on them.

A conversation is a fold over `llm.conversations`: a tree of nodes, each a turn with its response or
a batch of items. This room reads that fold for one owner and appends the records that change it. It
does not acquire the place of a new turn (`requests.turns` does), and generates nothing.

    conversations   find, create, change, append; reads up to the log's end where it matters
    items           the items of a conversation, for clients and for a model
    turn_list       its nodes as a list: each with its question and its response
    erasure         deletes a conversation together with the responses that are its turns
    wiring          wires these parts
    share_links     links that show it without a credential

In: an owner and an id. Out: nodes, items, records of `llm.conversations` and `llm.deletions`.
"""
