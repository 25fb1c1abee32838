"""Text: ids become what readers see.

    generation        one attempt at a response: steps become TOK frames and one END; pure
     visible          text of ids, and marks in it; pure
     stop_strings     stop strings in a stream of text; pure
     item_parser      an engine's parser: ids become pieces of items; pure
     flush_scheduler   when frames are written, and which go out together
    messages          chat messages as requests carry them; pure

In: ids. Out: frames. An attempt that continues another makes the same text of the same ids, so the
reader sees no difference.
"""
