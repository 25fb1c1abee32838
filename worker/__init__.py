"""The worker: takes requests from the log, runs the engine, writes tokens to the log."""
