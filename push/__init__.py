"""Log → client: tail, fold, hub, outbox. Queries only; holds nothing that is not in the log."""
