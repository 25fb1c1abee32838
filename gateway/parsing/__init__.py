"""From a client's body to one checked command (pure).

Two APIs, Responses and Chat Completions, end in the same `command.Create`. Unknown fields are
ignored, because clients send many. Known fields that this product does not support are refused by
name, because ignoring them silently would give a wrong answer.

    responses_api, chat_api        the fields of each API, and what it refuses
     └ unserved                    fields that are refused in both
     └ input_items, chat_messages  the model's input, in each API
        └ messages                 one message: role and content parts
        └ conversation             the items of both APIs, and their chat messages
     └ shared_fields               the fields that both APIs share
        └ sampling                 sampling parameters
     └ tools                       tools, and the choice among them
     └ formats                     output formats
        └ schemas                  which JSON schemas the engine enforces
           └ patterns              which regular expressions
     └ reasoning                   reasoning effort and verbosity
     └ scalars                     strings, numbers and booleans, with their bounds
"""
