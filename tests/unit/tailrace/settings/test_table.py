"""The table of variables is complete, and everything that is made from it is true."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tailrace.auth.issuers import load_issuers
from tailrace.settings import table
from tests.support import cases

ROOT = Path(__file__).resolve().parents[4]
PROGRAMS = ("gateway", "push", "worker", "pipelines", "tailrace")
SOURCES = (*PROGRAMS, "k8s", "docker", "scripts", "bench", "Makefile", "locustfile.py")
NAME = re.compile(r"\bTAILRACE_[A-Z_]*[A-Z]\b")
OWN = ROOT / "tailrace" / "settings"
# Programs that the services start, and libraries, have variables of their own.
MAY_READ_THE_ENVIRONMENT = {
    "tailrace/local": "the machine: PATH, HOME, what started programs inherit",
    "tailrace/cli/doctor.py": "KAFKA_HOME",
    "tailrace/cli/terminal_chat.py": "TERM and NO_COLOR, which terminals set",
    "tailrace/cli/run_service.py": "becomes the service, with its environment",
    "worker/engines/vllm.py": "sets what vLLM reads",
    "worker/engines/pdeathsig.py": "runs in vLLM's processes, where nothing else may be imported",
    "pipelines/analytics": "programs of their own, which hand their environment on",
    "tailrace/settings": "the one place",
}


def files(*places: str) -> Iterator[Path]:
    for place in places:
        path = ROOT / place
        found = [path] if path.is_file() else path.rglob("*")
        for file in found:
            if file.is_file() and file.suffix != ".pyc" and "node_modules" not in file.parts:
                yield file


def names_in(file: Path) -> set[str]:
    found = NAME.findall(file.read_text(errors="ignore"))
    return {name for name in found if not name.startswith("TAILRACE_TEST")}


def test_every_variable_that_anything_reads_or_sets_is_in_the_table() -> None:
    unknown = {
        f"{file.relative_to(ROOT)}: {name}"
        for file in files(*SOURCES)
        if not file.is_relative_to(OWN)
        for name in names_in(file) - {row.name for row in table.VARIABLES}
    }
    assert not unknown


@cases.each("row", table.VARIABLES, ids=lambda row: row.name)
def test_every_row_is_read_somewhere(row: table.Variable) -> None:
    attribute = re.compile(rf"\.{row.field}\b" if row.field else rf"\b{row.name}\b")
    sources = [f for f in files(*PROGRAMS, "locustfile.py") if f.suffix == ".py"]
    assert any(
        attribute.search(text) or row.name in text
        for text in (f.read_text() for f in sources if not f.is_relative_to(OWN))
    )


def test_services_read_the_environment_in_one_place() -> None:
    reading = {
        file.relative_to(ROOT).as_posix()
        for file in files(*PROGRAMS)
        if file.suffix == ".py" and re.search(r"os\.(environ|getenv)\b", file.read_text())
    }
    assert not {name for name in reading if not name.startswith(tuple(MAY_READ_THE_ENVIRONMENT))}


def test_the_document_has_the_table() -> None:
    script = [sys.executable, "scripts/settings_table.py", "--check"]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_issuers_file_of_the_document_is_accepted(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    section = text.partition("<!-- end of settings -->")[2].partition("\n## ")[0]
    file = tmp_path / "issuers.json"
    file.write_text(section.partition("```json\n")[2].partition("```")[0])
    assert load_issuers(file).by_name
