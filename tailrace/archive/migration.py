"""Brings the tables to a revision. Apart from the rest, because readers need no Alembic."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import alembic.command
import alembic.config
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from tailrace.archive import database

MIGRATIONS: Final = Path(__file__).parent / "migrations"


async def migrate(engine: AsyncEngine, revision: str = "head") -> None:
    """Bring the tables to a revision (`head`: the newest; `base`: none). Several processes may do
    it at once.

    Raises:
        database.ERRORS
    """
    async with database.writing(engine) as connection:
        await connection.run_sync(_migrate, revision)


def _migrate(connection: sa.Connection, revision: str) -> None:
    config = alembic.config.Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    if revision == "base":
        alembic.command.downgrade(config, revision)
    else:
        alembic.command.upgrade(config, revision)
