"""`make retrieval`: vector stores with a real embedding model.

The texts are the docstrings of Python's standard library, one file a module, and the questions are
asked in other words. A gateway is killed in the middle, everything is added a second time, and
another user searches. It fails where a count changes, an answer changes, or another user finds
anything; how often the right passage is found is a figure of the model.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import openai
from openai.types import StaticFileChunkingStrategyObjectParam
from openai.types.vector_store_search_response import VectorStoreSearchResponse

from bench import stacks
from tailrace.local import dev_credentials

MODEL: Final = "all-minilm-l6-v2"
LONGEST: Final = 256  # tokens that the model reads of a text
_MODULES: Final = """
    argparse array ast asyncio base64 bisect calendar cmath codecs collections colorsys
    configparser contextlib copy csv ctypes datetime decimal difflib dis email.message enum
    filecmp fileinput fnmatch fractions ftplib functools gc getpass gettext glob gzip hashlib
    heapq hmac html http.client http.cookies imaplib importlib inspect io ipaddress itertools
    json linecache locale logging lzma mailbox math mimetypes mmap multiprocessing numbers
    operator os os.path pathlib pickle pkgutil platform plistlib poplib pprint queue random re
    sched secrets select selectors shelve shlex shutil signal smtplib socket sqlite3 ssl stat
    statistics string struct subprocess sys tarfile tempfile textwrap threading time timeit
    tokenize traceback types typing unicodedata unittest urllib.parse urllib.request uuid
    warnings wave weakref xml.etree.ElementTree zipfile
"""
# A question, and which description answers it.
QUESTIONS: Final = (
    ("What is the middle value of a list of numbers?", "statistics.median"),
    ("How far do values spread around their average?", "statistics.stdev"),
    ("largest integer that divides both numbers", "math.gcd"),
    ("number of ways to choose k items from n without order", "math.comb"),
    ("Break a long line of text into lines of limited width", "textwrap.wrap"),
    ("remove common leading whitespace from every line", "textwrap.dedent"),
    ("delete a whole directory and everything in it", "shutil.rmtree"),
    ("How much free space has my disk?", "shutil.disk_usage"),
    ("Where is the executable that a command would run?", "shutil.which"),
    ("split a command line like a Unix shell does", "shlex.split"),
    ("make a string safe to use as a shell argument", "shlex.quote"),
    ("insert into a sorted list and keep it sorted", "bisect.insort_right"),
    ("take the smallest element from a heap", "heapq.heappop"),
    ("the n biggest elements of a dataset", "heapq.nlargest"),
    ("make every possible ordering of the elements", "itertools.permutations"),
    ("random text that is safe in a URL, for a password reset", "secrets.token_urlsafe"),
    ("compare two digests without leaking timing", "hmac.compare_digest"),
    ("Is this year a leap year?", "calendar.isleap"),
    ("replace special characters by HTML-safe sequences", "html.escape"),
    ("words in a list that look similar to a misspelt one", "difflib.get_close_matches"),
    ("name of the operating system I am running on", "platform.system"),
    ("read a password without showing it on the screen", "getpass.getpass"),
    ("guess the type of a file from its name", "mimetypes.guess_type"),
    ("combine the parts of a URL with a base URL", "urllib.parse.urljoin"),
    ("run a function at exit of a with block whatever happens", "contextlib.ExitStack"),
    ("official name of a Unicode character", "unicodedata.name"),
    ("call function repeatedly to reduce a sequence to one value", "functools.reduce"),
    ("shuffle a list in place", "random.shuffle"),
    ("turn a tree of Python objects into JSON text", "json.dumps"),
    ("wait for a child program and capture its output", "subprocess.check_output"),
)
CUT: Final = StaticFileChunkingStrategyObjectParam(
    type="static", static={"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}
)
SAMPLE: Final = 20  # results of a question that are compared


def say(text: str) -> None:
    """A line with the time, at once."""
    sys.stdout.write(f"[{time.strftime('%H:%M:%S')}] {text}\n")
    sys.stdout.flush()


def described(name: str) -> Iterator[str]:
    """What a module's public functions and classes say of themselves."""
    module = importlib.import_module(name)
    for each, found in sorted(vars(module).items()):
        if each.startswith("_") or not callable(found):
            continue
        text = inspect.getdoc(found)
        if text:
            # Blank lines would part a description from its name.
            yield f"{name}.{each}: " + " ".join(text.split())


async def added(client: openai.AsyncOpenAI, store: str, files: Sequence[str]) -> list[str]:
    """Add files to a store and wait for their passages. Returns why files have none: the model
    refuses texts that are too long for it, and lengths are estimated before."""
    await client.vector_stores.file_batches.create(
        store, file_ids=list(files), chunking_strategy=CUT
    )
    end = time.monotonic() + 1_200
    while time.monotonic() < end:
        counts = (await client.vector_stores.retrieve(store)).file_counts
        if counts.completed + counts.failed == len(files):
            refused = client.vector_stores.files.list(store, filter="failed")
            return [str(file.last_error and file.last_error.message) async for file in refused]
        await asyncio.sleep(0.5)
    raise SystemExit("the files took too long")


Found = list[tuple[str, float, str]]


async def searched(client: openai.AsyncOpenAI, store: str, question: str) -> Found:
    page = await client.vector_stores.search(store, query=question, max_num_results=SAMPLE)
    return [_hit(hit) for hit in page.data]


def _hit(hit: VectorStoreSearchResponse) -> tuple[str, float, str]:
    text = hit.content[0].text
    return hit.filename, round(hit.score, 4), text


async def count(client: openai.AsyncOpenAI, store: str) -> int:
    """Passages that the API shows."""
    rows = 0
    async for file in client.vector_stores.files.list(store):
        page = await client.vector_stores.files.content(file.id, vector_store_id=store)
        rows += len([each async for each in page])
    return rows


def ranked(found: Sequence[Found]) -> dict[str, float]:
    """How often the passage that answers a question is the first one, or among the first five."""
    firsts = fives = 0
    for (question, wanted), hits in zip(QUESTIONS, found, strict=True):
        # A passage may have the end of one description and the beginning of another.
        places = [n for n, (_, _, text) in enumerate(hits) if f"{wanted}: " in text]
        place = min(places, default=len(hits))
        firsts += place == 0
        fives += place < 5
        if place >= 5:
            say(f"  not among five: {question!r}: {wanted} at {place + 1}")
    return {"first": firsts / len(QUESTIONS), "among five": fives / len(QUESTIONS)}


async def trial(side: stacks.Side, at: str) -> list[str]:
    """Everything on one deployment. Returns what is wrong. `at`: the gateway that lives on."""
    assert side.data is not None
    data, wrong = side.data, list[str]()

    def client(subject: str) -> openai.AsyncOpenAI:
        token = dev_credentials.issue(data, subject, 3 * 3600)
        return openai.AsyncOpenAI(api_key=token, base_url=f"{at}/v1", max_retries=5, timeout=120)

    def expect(what: str, found: object, wanted: object) -> None:
        say(f"  {what}: {found}")
        if found != wanted:
            wrong.append(f"{what}: {found}, and not {wanted}")

    alice, bob = client("alice"), client("bob")
    texts = {name: "\n\n".join(described(name)) for name in _MODULES.split()}
    files = [
        (await alice.files.create(file=(f"{name}.txt", text.encode()), purpose="assistants")).id
        for name, text in texts.items()
        if text
    ]
    store = (await alice.vector_stores.create(name="standard library")).id
    began = time.perf_counter()
    adding = asyncio.ensure_future(added(alice, store, files))
    await asyncio.sleep(20)
    victim = side.roles["gateway"][-1]
    os.kill(victim, signal.SIGKILL)
    say(f"{len(files)} files; the other gateway was killed")
    refused = await adding
    took = time.perf_counter() - began
    for reason in refused:
        say(f"  a file was refused: {reason}")
    if len(refused) > len(files) / 20:
        wrong.append(f"{len(refused)} of {len(files)} files were refused")
    passages = await count(alice, store)
    say(f"{passages} passages in {took:.0f} s: {passages / took:.0f} a second")
    found = [await searched(alice, store, question) for question, _ in QUESTIONS]
    figures = ranked(found)
    say(f"right passage: {json.dumps(figures)}")
    if figures["among five"] < 0.5:
        wrong.append("a real model finds more than half among the first five")

    say("everything once more")
    for file in files:
        await alice.vector_stores.files.delete(file, vector_store_id=store)
    expect("files refused, the second time", len(await added(alice, store, files)), len(refused))
    expect("passages, the second time", await count(alice, store), passages)
    again = [await searched(alice, store, question) for question, _ in QUESTIONS]
    # Equal scores may come in either order; vectors of one text differ in the last bits by batch.
    same = sum(
        {text for _, _, text in a[:5]} == {text for _, _, text in b[:5]}
        for a, b in zip(found, again, strict=True)
    )
    expect("questions with the same five passages", same, len(QUESTIONS))

    other = (await bob.vector_stores.create(name="empty")).id
    expect("another user's own store finds", await searched(bob, other, QUESTIONS[0][0]), [])
    try:
        await searched(bob, store, QUESTIONS[0][0])
    except openai.NotFoundError:
        say("  another user gets 404")
    else:
        wrong.append("another user may search the store")
    return wrong


def main() -> int:
    """The trial with the model in a folder."""
    parser = argparse.ArgumentParser(prog="python -m bench.retrieval", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder of all-MiniLM-L6-v2")
    chosen = parser.parse_args()
    # Without this the deployment would survive, because it has a session of its own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="tailrace-", ignore_cleanup_errors=True) as folder:
        pools = {
            "embedding": {
                "models": [MODEL],
                "engine": "vllm",
                "source": str(chosen.model.absolute()),
                "max_model_len": LONGEST,
            }
        }
        settings = {
            "TAILRACE_POOLS": json.dumps(pools),
            "TAILRACE_VECTORS": str(Path(folder) / "vectors"),
            "TAILRACE_VECTORS_MODEL": MODEL,
        }
        with stacks.tailrace(Path(folder), engine="vllm", gateways=2, settings=settings) as side:
            say("the deployment is ready")
            wrong = asyncio.run(trial(side, side.urls[0]))
    for each in wrong:
        say(f"WRONG {each}")
    say("failed" if wrong else "passed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
