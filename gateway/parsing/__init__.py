"""From a client's body to one checked command (pure).

Two APIs, Responses and Chat Completions, end in the same `command.Create`. Unknown fields are
ignored, because clients send many. Known fields that this product cannot honour are refused by
name, because an answer that silently ignored them would be wrong.

    responses_api, chat_api      the fields of each API, and what it refuses
     └ input_items               the items of a Responses input
        └ messages               one message: role and content parts
     └ shared_fields             the fields that both APIs spell alike
        └ sampling               how the engine picks tokens
     └ tools                     tools, in both APIs
     └ scalars                   strings, numbers and booleans, declared with their bounds
"""
