"""Pipelines that run out of the box, and generators of records for them (`data`)."""
