"""Engines: one interface (`base`), three implementations. Importing this package loads none of
them."""
