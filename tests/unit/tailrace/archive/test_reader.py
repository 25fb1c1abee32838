from __future__ import annotations

import subprocess
import sys

import pytest

from tailrace.archive import archived, reader, sql_reader


@pytest.mark.parametrize("service", ["gateway", "push"])
def test_a_service_without_an_archive_loads_no_database_library(service: str) -> None:
    """It was a quarter of the time in which a gateway starts."""
    program = f"import sys, {service}.app; sys.exit('sqlalchemy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


async def test_an_url_is_an_archive_and_none_is_none() -> None:
    assert reader.open_reader("") is None
    made = reader.open_reader("sqlite:////nowhere/archive.sqlite3")
    assert isinstance(made, sql_reader.SqlReader)
    with pytest.raises(archived.ArchiveUnavailable):
        await made.find("resp_x", "owner")
    await made.stop()
