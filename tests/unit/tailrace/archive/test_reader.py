from __future__ import annotations

import subprocess
import sys

import pytest

from tailrace.archive import archived, reader, sql_reader


@pytest.mark.parametrize("service", ["gateway", "push"])
def test_a_service_loads_no_library_that_only_some_settings_need(service: str) -> None:
    """The database's was a quarter of the time in which a gateway starts."""
    unused = "{'sqlalchemy', 'httpx', 'rich'} & {*sys.modules}"
    program = f"import sys, {service}.app; sys.exit({unused} or 0)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


async def test_an_url_is_an_archive_and_none_is_none() -> None:
    assert reader.open_reader("") is None
    made = reader.open_reader("sqlite:////nowhere/archive.sqlite3")
    assert isinstance(made, sql_reader.SqlReader)
    with pytest.raises(archived.ArchiveUnavailable):
        await made.find("resp_x", "owner")
    await made.stop()
