"""Engines generate tokens. One file for each engine, one interface (`base`).

In: a request, the prompt's ids and the ids accepted so far (`base.GenerationInput`). Out: steps of
new ids (`base.Step`). An engine knows nothing of the log or of clients.

    scripted    no model; for tests and load
    openai      any OpenAI-compatible server over HTTP, with openai_body and openai_answers
                (request and response), openai_items (its ids), openai_canary (its abilities),
                openai_credentials and openai_pace
    vllm        vLLM in this process, with vllm_public and vllm_internals (two ways to read its
                output), vllm_cpu, detokenizer and pdeathsig

`tailrace.engines` is the table of engines. An engine's module is imported only in a worker that
runs it, so that a worker without vLLM needs no torch.
"""
