"""The Dockerfiles, read without an engine: their base images, their packages, and their users."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from k8s.gate.manifests import Verdict

ROOT = Path(__file__).resolve().parents[2]
_WORDS = {
    *("ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "EXPOSE", "CMD", "ENTRYPOINT"),
    *("LABEL", "HEALTHCHECK", "STOPSIGNAL", "ADD", "SHELL", "VOLUME"),
}
_PINNED = re.compile(r"[a-z0-9./-]+:(?!latest@)[\w.-]+@\$\{[A-Z]+_DIGEST\}")
_INSTALL = re.compile(r"\b(?:uv )?pip install\b(.*)")


class Instruction(NamedTuple):
    word: str
    rest: str
    stage: int  # 0 before the first FROM


class Image(NamedTuple):
    """One parsed Dockerfile and what surrounds it. `ignored` are the lines of its .dockerignore."""

    name: str
    instructions: list[Instruction]
    ignore_lines: list[str]

    def all(self, word: str) -> list[Instruction]:
        return [i for i in self.instructions if i.word == word]


def parse(text: str) -> list[Instruction]:
    """Instructions in order, continued lines joined, comments gone."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    stage, instructions = 0, []
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        word, _, rest = line.strip().partition(" ")
        if word:
            stage += word.upper() == "FROM"
            instructions.append(Instruction(word.upper(), re.sub(r"\s+", " ", rest).strip(), stage))
    return instructions


def load() -> list[Image]:
    images = []
    for file in sorted((ROOT / "docker").glob("*.Dockerfile")):
        ignore = file.with_name(f"{file.name}.dockerignore")
        ignore_lines = ignore.read_text().splitlines() if ignore.exists() else []
        images.append(Image(file.name, parse(file.read_text()), ignore_lines))
    return images


def known_words(image: Image) -> str:
    odd = [i.word for i in image.instructions if i.word not in _WORDS]
    return f"not an instruction: {', '.join(odd)}" if odd else ""


def pinned_bases(image: Image) -> str:
    """Base images are named by tag and digest. The digest has no default, so that a build never
    uses the newest image by chance."""
    for instruction in image.all("FROM"):
        if not _PINNED.fullmatch(instruction.rest.split(" ")[0]):
            return f"FROM {instruction.rest}: not pinned by a digest argument"
    defaults = [i.rest for i in image.all("ARG") if "=" in i.rest]
    return f"ARG {defaults[0]}: a default digest would go stale" if defaults else ""


def nothing_fetched(image: Image) -> str:
    """No ADD, which accepts URLs and unpacks archives, and no download without a checksum."""
    if image.all("ADD"):
        return f"ADD {image.all('ADD')[0].rest}: COPY what is in the tree"
    fetching = [i.rest for i in image.all("RUN") if re.search(r"\b(curl|wget|git clone)\b", i.rest)]
    return f"RUN {fetching[0]}: fetches from the network" if fetching else ""


def hashed_packages(image: Image) -> str:
    """Everything from a package index has a checksum in a lock file of the repository."""
    for instruction in image.all("RUN"):
        for command in re.split(r"&&|;", instruction.rest):
            install = _INSTALL.search(command)
            if (
                install
                and "--require-hashes" not in command
                and not {"--no-deps", "--no-index"} <= set(command.split())
            ):
                return f"without checksums: {command.strip()}"
            for lock in re.findall(r"-r (\S+)", command):
                if not (ROOT / lock).is_file():
                    return f"no such lock file: {lock}"
            if re.search(r"\bnpm (install|i)\b", command) or (
                "npm ci" in command and "--ignore-scripts" not in command
            ):
                return f"npm without its lock, or with scripts: {command.strip()}"
        has_checksum = re.search(r"sha256sum --check --strict (/src/)?locks/", instruction.rest)
        if re.search(r"\bmvn\b", instruction.rest) and not has_checksum:
            return f"Maven without checksums of its own: {instruction.rest}"
    return ""


def unprivileged(image: Image) -> str:
    """The last stage ends as a numeric user: Kubernetes cannot verify that a name is not root."""
    last = max(i.stage for i in image.instructions)
    users = [i.rest for i in image.all("USER") if i.stage == last]
    if not users or not re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1]):
        return f"runs as {users[-1] if users else 'root'}"
    return ""


def exec_form(image: Image) -> str:
    """Process 1 is not a shell, which would not pass SIGTERM on, so nothing would drain."""
    for instruction in [*image.all("CMD"), *image.all("ENTRYPOINT")]:
        try:
            json.loads(instruction.rest)
        except json.JSONDecodeError:
            return f"{instruction.word} {instruction.rest}: not in exec form"
    return "" if image.all("CMD") or image.all("ENTRYPOINT") else "starts nothing"


def sources_exist(image: Image) -> str:
    """Every copied path exists in the tree, and the ignore file lets it through."""
    back = [line[1:].rstrip("/") for line in image.ignore_lines if line.startswith("!")]
    for instruction in image.all("COPY"):
        words = instruction.rest.split(" ")
        if words[0].startswith("--from="):
            continue
        for source in words[:-1]:
            path = source.rstrip("/")
            if not (ROOT / path).exists():
                return f"COPY {source}: not in the tree"
            if not any(path == b or path.startswith(f"{b}/") or Path(path).match(b) for b in back):
                return f"COPY {source}: kept out by the ignore file"
    return ""


def closed_context(image: Image) -> str:
    first = next((line for line in image.ignore_lines if line and not line.startswith("#")), "")
    return "" if first == "*" else "its build context is not closed by `*`"


CHECKS: dict[str, Callable[[Image], str]] = {
    "Dockerfile instructions": known_words,
    "base images pinned by digest": pinned_bases,
    "nothing fetched without a checksum": nothing_fetched,
    "packages by lock file and checksum": hashed_packages,
    "image ends as a numeric non-root user": unprivileged,
    "processes in exec form": exec_form,
    "copied sources exist": sources_exist,
    "build context closed": closed_context,
}


def check(images: list[Image]) -> Iterator[tuple[str, Verdict]]:
    for name, examine in CHECKS.items():
        for image in images:
            yield name, Verdict(image.name, examine(image))
