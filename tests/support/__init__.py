"""Real parts for tests: a broker and a Redis of their own, on free ports, gone afterwards."""
