"""What the services share, and the command line that runs them.

Each room says in its `__init__` what goes in, what comes out and what it must never touch. The
arrows between rooms are import-linter contracts in `pyproject.toml` (docs/design.md, Dependencies).
"""
