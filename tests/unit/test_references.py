"""Every reference to a document, rule, section, file or function resolves.

Looked at: comments and docstrings of the code, comments of manifests and scripts, and all Markdown.

    docs/x.md                    the file exists; so does every other path of this repository
    docs/x.md, section 3         that document has a numbered heading 3
    docs/x.md, Heading           that document has a heading that begins so (docs/design/x.md too)
    log rule W3, log rule §8     docs/log-rule.md defines it
    L4, F12, M2                  docs/verify.md defines it
    [text](other.md#anchor)      file and heading exist
    path/file.py:name            the function, class or Class.method is in that file

A section number without a document means the document it stands in; in code it is an error.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support import cases

ROOT = Path(__file__).resolve().parents[2]
TOPS = (
    *("gateway", "push", "worker", "tailrace", "tests", "bench", "k8s", "docker", "scripts"),
    *("docs", "frontend", "locks", ".github", ".ci"),
)
SKIPPED = {"node_modules", "dist", "out", "__pycache__", "images"}
# Written once and about the past: files named there may be gone.
HISTORY = ("CHANGELOG.md", "docs/measurements/")
BUILT = (
    "frontend/dist",
    "frontend/dist-admin",
    "frontend/node_modules",
    "bench/out",
    "docs/measurements/",
)

_HASH = re.compile(r"(?:^|\s)#+ ?(.*)$", re.MULTILINE)
_SLASHES = re.compile(r"(?:^|\s)//+ ?(.*)$|/\*(.*?)\*/", re.MULTILINE | re.DOTALL)
_PATH = re.compile(
    rf"(?<![\w./@-])((?:{'|'.join(re.escape(top) for top in TOPS)})/[\w./*{{}}<>-]*[\w}}])"
    r"(?::([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*))?"
)
_BARE_DOCUMENT = re.compile(r"(?<![\w/.-])([A-Za-z][\w-]*\.md)\b")
_DOCUMENT = r"`?(docs/(?:design/)?[\w-]+\.md)`?"
_IN_DOCUMENT = re.compile(rf"{_DOCUMENT},? (§ ?|sections? )(\d+)")
_HEADING = re.compile(rf"{_DOCUMENT}, (?!sections? )([A-Z][^).;:,\n`]*)")
_NAMED = re.compile(rf"(?:\(|; ){_DOCUMENT}, (?!sections? )([^);\n]*)[;)]")
_STEM = re.compile(r"\((?:pure; )?(?:design|protocol|operations|security|faults), [a-z]")
_SECTION = re.compile(r"(\S+) (?:§ ?|sections? )(\d+(?:\.\d+)*)")
_RULE = re.compile(r"\b([RWP]\d{1,2}|[LCFM]\d{1,2})\b(?![\w.]*=)")
_LOG_RULE = re.compile(r"log rule,? ((?:[A-Z]\d+|§ ?\d+|section \d+|and|,|–|-| )+)")
_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)|!\[[^\]\n]*\]\(([^)\s]+)\)")
_OUTSIDE = re.compile(r"RFC|HTML|KIP|WHATWG|OpenAPI|CommonMark")


# What every reference has a part of. Two modules of three have none, and need not be parsed.
_ANY = re.compile(
    rf"\.md\b|§|\bsections?\b|\blog rule|{_RULE.pattern}|{_STEM.pattern.split(',')[0]}"
    rf"|(?<![\w./@-])(?:{'|'.join(re.escape(top) for top in TOPS)})/"
)


def _python(text: str) -> str:
    """The comments and docstrings of a module, joined over lines; empty without any reference."""
    if not _ANY.search(text):
        return ""
    comments = [
        token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    ]
    docstrings = [
        ast.get_docstring(node) or ""
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return _joined("\n".join(comments + docstrings))


def _joined(text: str) -> str:
    """One space for each line break, so that a reference may be broken over two lines."""
    return re.sub(r"[ \t]*\n[ \t]*", " ", text)


def _markdown(text: str) -> str:
    """Without code blocks, which hold examples, and without the file map: it repeats docstrings."""
    text = re.sub(r"<!-- file map.*?<!-- end of file map -->", "", text, flags=re.DOTALL)
    return re.sub(r"^( *)```.*?^\1```", "", text, flags=re.MULTILINE | re.DOTALL)


def _hashes(text: str) -> str:
    return " ".join(_HASH.findall(text))


def _slashes(text: str) -> str:
    return _joined("\n".join(a or b for a, b in _SLASHES.findall(text)))


PROSE: dict[str, Callable[[str], str]] = {
    ".py": _python,
    ".md": _markdown,
    ".ts": _slashes,
    ".mjs": _slashes,
    ".css": _slashes,
    ".yaml": _hashes,
    ".yml": _hashes,
    ".toml": _hashes,
    ".sh": _hashes,
    ".in": _hashes,
    ".Dockerfile": _hashes,
    "Makefile": _hashes,
}


def _files() -> Iterator[Path]:
    folders = [ROOT / top for top in TOPS]
    found = [path for path in ROOT.iterdir() if path.is_file()]
    while folders:
        folder = folders.pop()
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.is_dir():
                if path.name not in SKIPPED:
                    folders.append(path)
            else:
                found.append(path)
    for path in found:
        if (path.suffix or path.name) in PROSE and path != Path(__file__):
            yield path


@functools.cache
def _document(path: str) -> str:
    return _markdown((ROOT / path).read_text())


@functools.cache
def _headings(path: str) -> tuple[str, ...]:
    return tuple(re.findall(r"^#+ (.*?)\s*$", _document(path), re.MULTILINE))


@functools.cache
def _sections(path: str) -> frozenset[str]:
    numbers = (re.match(r"(\d+)\. ", heading) for heading in _headings(path))
    return frozenset(number[1] for number in numbers if number)


@functools.cache
def _rules() -> dict[str, frozenset[str]]:
    """Defined rule numbers: of the log rule, and of the checks, faults and meta-checks."""
    return {
        "log rule": frozenset(
            re.findall(r"^- \*\*([A-Z]\d+)\*\*", _document("docs/log-rule.md"), re.M)
        ),
        "verify": frozenset(re.findall(r"^\| ([A-Z]\d+)\b", _document("docs/verify.md"), re.M)),
    }


def _anchor(heading: str) -> str:
    """GitHub's anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower().replace("`", "")).replace(" ", "-")


def _beside(where: str, link: str) -> str:
    """The path from the root of what a document links to."""
    return str(((ROOT / where).parent / link).resolve().relative_to(ROOT))


def _defines(path: Path, name: str) -> bool:
    """Whether the Python file defines the function, class, or Class.method."""
    scope: list[ast.stmt] = ast.parse(path.read_text()).body
    for part in name.split("."):
        found = [
            node
            for node in scope
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name == part
        ]
        if not found:
            return False
        scope = found[0].body
    return True


def _dead_paths(text: str, where: str) -> Iterator[str]:
    if where.startswith(HISTORY):
        return
    for found in _PATH.finditer(text):
        name, function = found.groups()
        if name.startswith(BUILT) or any(c in name for c in "*{<"):
            continue
        path = ROOT / name
        if "/" not in name or not path.exists():
            # a module without its suffix, or a folder of a sentence such as "push/watch": only
            # what looks like a file is one
            if Path(name).suffix or name.startswith("docs/"):
                yield f"no file {name}"
        elif function and path.suffix == ".py" and not _defines(path, function):
            yield f"no {function} in {name}"


def _dead_headings(text: str) -> Iterator[str]:
    for path, heading in [*_HEADING.findall(text), *_NAMED.findall(text)]:
        if not (ROOT / path).is_file():
            continue  # said by _dead_paths
        wanted = heading.strip().strip('"')
        if not any(
            known.removeprefix("The ").startswith(wanted) or known.startswith(wanted)
            for known in _headings(path)
        ):
            yield f"no heading “{wanted}” in {path}"
    for found in _STEM.findall(text):
        yield f"a document without its path: {found}"


def _dead_sections(text: str, where: str) -> Iterator[str]:
    for path, _, number in _IN_DOCUMENT.findall(text):
        if (ROOT / path).is_file() and number not in _sections(path):
            yield f"no section {number} in {path}"
    rest = _IN_DOCUMENT.sub(" ", text)
    for cited in _LOG_RULE.findall(rest):
        for number in re.findall(r"(?:§ ?|section )(\d+)", cited):
            if number not in _sections("docs/log-rule.md"):
                yield f"no section {number} in docs/log-rule.md"
    rest = _LOG_RULE.sub("log rule ", rest)
    own = where if where.endswith(".md") else None
    for before, number in _SECTION.findall(rest):
        linked = re.search(r"\(([\w./-]+\.md)\),?$", before)
        document = _beside(where, linked[1]) if linked and own else own
        if _OUTSIDE.search(before):
            continue
        if document is None:
            yield f"section {number} of no document (after “{before}”)"
        elif number not in _sections(document):
            yield f"no section {number} in {document}"


def _dead_rules(text: str) -> Iterator[str]:
    for cited in _LOG_RULE.findall(text):
        for rule in re.findall(r"[A-Z]\d+", cited):
            if rule not in _rules()["log rule"]:
                yield f"no rule {rule} in docs/log-rule.md"
    known = _rules()["log rule"] | _rules()["verify"]
    for rule in _RULE.findall(_LOG_RULE.sub(" ", text)):
        if rule not in known:
            yield f"no rule {rule} in docs/log-rule.md or docs/verify.md"


def _dead_links(text: str, path: Path) -> Iterator[str]:
    for found in _LINK.findall(re.sub(r"`[^`\n]*`", "", text)):
        target = found[0] or found[1]
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists():
            yield f"no file behind the link {target}"
        elif anchor and anchor not in {_anchor(h) for h in _headings(str(file.relative_to(ROOT)))}:
            yield f"no heading behind the link {target}"


def _dead_documents(text: str, path: Path) -> Iterator[str]:
    for name in _BARE_DOCUMENT.findall(re.sub(r"\]\([^)]*\)", "]", text)):
        if not any((folder / name).is_file() for folder in (path.parent, ROOT)):
            yield f"no document {name} (give its path)"


def dead(path: Path) -> list[str]:
    """The dead references of one file."""
    where = str(path.relative_to(ROOT))
    text = PROSE[path.suffix or path.name](path.read_text())
    found = [
        *_dead_paths(text, where),
        *_dead_headings(text),
        *_dead_sections(text, where),
        *(() if where.startswith(HISTORY) else _dead_rules(text)),
        *(_dead_links(text, path) if path.suffix == ".md" else _dead_documents(text, path)),
    ]
    return [f"{where}: {problem}" for problem in found]


def test_every_reference_resolves() -> None:
    problems = [problem for path in _files() for problem in dead(path)]
    assert not problems, "\n" + "\n".join(problems)


@cases.each(
    ("text", "problem"),
    [
        ("See docs/gone.md for this.", "no file docs/gone.md"),
        ("See docs/security for this.", "no file docs/security"),
        ("See worker/gone.py for this.", "no file worker/gone.py"),
        ("See worker/serving/takeover.py:gone.", "no gone in worker/serving/takeover.py"),
        ("(docs/log-rule.md, section 99)", "no section 99 in docs/log-rule.md"),
        ("(docs/design.md, No such heading)", "no heading “No such heading” in docs/design.md"),
        ("(docs/design/turns.md, Gone)", "no heading “Gone” in docs/design/turns.md"),
        ("(pure; docs/design.md, identity)", "no heading “identity” in docs/design.md"),
        ("Broken over lines (docs/log-rule.md,\nsection 99)", "no section 99 in docs/log-rule.md"),
        ("As the log rule W99 says.", "no rule W99 in docs/log-rule.md"),
        ("As the log rule §99 says.", "no section 99 in docs/log-rule.md"),
        ("Stops the attempt (W99).", "no rule W99 in docs/log-rule.md or docs/verify.md"),
        ("Judged by L99.", "no rule L99 in docs/log-rule.md or docs/verify.md"),
        ("Drill F99.", "no rule F99 in docs/log-rule.md or docs/verify.md"),
        ("As section 3 says.", "section 3 of no document (after “As”)"),
        ("The summary (faults §3.3).", "section 3.3 of no document (after “(faults”)"),
        ("(pure; protocol.md)", "no document protocol.md (give its path)"),
    ],
)
def test_a_dead_reference_in_code_is_found(text: str, problem: str) -> None:
    assert problem in _found_in_code(text)


def _found_in_code(text: str) -> list[str]:
    prose = _python(f'"""{text}"""\n')
    path = ROOT / "worker" / "planted.py"
    return [
        *_dead_paths(prose, "worker/planted.py"),
        *_dead_headings(prose),
        *_dead_sections(prose, "worker/planted.py"),
        *_dead_rules(prose),
        *_dead_documents(prose, path),
    ]


@cases.each(
    ("text", "problem"),
    [
        ("[x](gone.md)", "no file behind the link gone.md"),
        ("[x](log-rule.md#gone)", "no heading behind the link log-rule.md#gone"),
        ("[x](#gone)", "no heading behind the link #gone"),
    ],
)
def test_a_dead_link_is_found(text: str, problem: str) -> None:
    assert list(_dead_links(text, ROOT / "docs" / "glossary.md")) == [problem]


def test_live_references_are_not_reported() -> None:
    text = (
        "worker/serving/takeover.py:decide (log rule W1–W7 and section 10; docs/log-rule.md, "
        "section 4), WHATWG HTML §9.2, docs/operations.md, Settings."
    )
    assert _found_in_code(text) == []


def test_the_design_lists_every_import_contract_and_no_other() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    chapter = _document("docs/design.md").split("| contract | meaning |")[1].split("\n\n")[0]
    listed = re.findall(r"^\| (.*?) \| ", chapter.split("|---|---|\n")[1], re.MULTILINE)
    names = [each["name"] for each in contracts["contracts"]]
    # What holds the files of one room is named by the room's contract.
    assert listed == [name for name in names if not name.endswith(": files, top to bottom")]
