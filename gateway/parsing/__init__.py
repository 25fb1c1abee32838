"""From a client's body to one checked command (pure).

Two APIs, Responses and Chat Completions, end in the same `command.Create`. Unknown fields are
ignored, because clients send many. Known fields that this product cannot honour are refused by
name, because an answer that silently ignored them would be wrong.

    responses_api, chat_api        the fields of each API, and what it refuses
     └ unserved                    fields that are refused in both
     └ input_items, chat_messages  what the model is given, in each API
        └ messages                 one message: role and content parts
        └ conversation             the items that both become, and their chat messages
     └ shared_fields               the fields that both APIs spell alike
        └ sampling                 how the engine picks tokens
     └ tools                       tools, and which of them may or must be called
     └ formats                     what the text must look like
        └ schemas                  which JSON schemas the engine enforces
           └ patterns              which regular expressions
     └ reasoning                   how much the model thinks and says
     └ scalars                     strings, numbers and booleans, declared with their bounds
"""
