"""A chat in the terminal: questions, commands, and answers as they arrive."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable

from tailrace.cli.chat_client import Answer, ChatError, Client
from tailrace.cli.transcript import Transcript
from tailrace.local.console import Console

HELP = """\
/help         this list
/new          forget the conversation and begin a new one
/model        the models of this gateway; /model NAME changes to one
/quit         leave (so do Ctrl-D, and Ctrl-C twice)
Ctrl-C stops an answer. The arrow keys edit the line and bring back earlier ones."""

ENGINE_POLL_S = 1.0  # between two polls of the engine while nothing arrives
ENGINE_NOTES = {"loading": "engine loading", "none": "no engine is there yet"}


class Chat:
    """One dialogue with one gateway.

    Attributes:
        model: which model answers.
        previous: the response that the next question follows; None at the beginning.
        warned: a second Ctrl-C leaves.
    """

    def __init__(self, client: Client, model: str, console: Console) -> None:
        self._client = client
        self._console = console
        self._transcript: Transcript | None = None  # of the answer that is being written
        client.report = self._report
        self.model = model
        self.previous: str | None = None
        self.warned = False

    def send(self, question: str) -> bool:
        """Ask and show the answer. Returns whether it was completed.

        Raises:
            ChatError: the service refuses, or is away for long.
            KeyboardInterrupt: the user stopped it before the gateway had accepted the question.
        """
        began = time.monotonic()
        response_id = self._client.send(self.model, question, self.previous)
        answer, first = Answer(response_id), 0.0
        self._transcript = transcript = Transcript(self._width, dims=_dims())
        note = _Note(self._client, self._console)
        try:
            for answer, piece in self._client.watch(response_id):
                note.place(answer.waits)
                if piece:
                    note.end()
                    if piece.text or piece.name:
                        first = first or time.monotonic() - began
                    _write(transcript.feed(piece))
        except KeyboardInterrupt:
            note.end()
            self._client.cancel(response_id)
            _write(f"{transcript.end()}\n")
            self._console.line("(stopped; Ctrl-C again leaves)")
            self.previous, self.warned = response_id, True
            return False
        finally:
            note.end()
            self._transcript = None
            _write(transcript.end())
        _write("\n")
        self._sum_up(answer, first, time.monotonic() - began)
        if answer.status in ("completed", "incomplete", "cancelled"):
            self.previous = response_id
        return answer.status == "completed"

    @property
    def _width(self) -> int:
        """Columns of the terminal; 0 if the answers go elsewhere."""
        return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0

    def _sum_up(self, answer: Answer, first: float, total: float) -> None:
        if answer.error or answer.status != "completed":
            why = f": {answer.error}" if answer.error else ""
            self._console.line(f"({answer.status}{why})")
        elif first:
            tokens = answer.usage.get("output_tokens", 0)
            rate = tokens / max(total - first, 1e-3)
            self._console.line(
                f"({tokens} tokens, first after {first * 1000:.0f} ms, {rate:.0f} tokens/s)"
            )

    def _report(self, text: str) -> None:
        """A note of the client. A running answer continues below it."""
        if self._transcript:
            _write(self._transcript.interrupt())
        self._console.line(text)

    def obey(self, line: str) -> bool:
        """Run a command, a line that begins with a slash. Returns False to leave."""
        name, _, rest = line.partition(" ")
        if name in ("/quit", "/exit"):
            return False
        if name == "/new":
            self.previous = None
            self._console.line("(a new conversation)")
        elif name == "/model":
            self._change_model(rest.strip())
        else:
            if name != "/help":
                self._console.line(f"there is no {name}")
            self._console.line(HELP)
        return True

    def _change_model(self, name: str) -> None:
        models = self._client.models()
        if name in models:
            self.model = name
            self._console.line(f"({name} answers from now on)")
        else:
            if name:
                self._console.line(f"there is no model {name}")
            for one in models:
                self._console.line(f"{'*' if one == self.model else ' '} {one}")


class _Note:
    """While nothing arrives, shows the request's place in the queue, or that the engine is
    loading, and for how long."""

    def __init__(self, client: Client, console: Console) -> None:
        self._client = client
        self._console = console
        self._began = time.monotonic()
        self._over = threading.Event()
        self._lock = threading.Lock()  # held while a note is printed
        self._place = ""
        threading.Thread(target=self._run, daemon=True).start()

    def end(self) -> None:
        """Say nothing from now on. It may be called again."""
        if not self._over.is_set():
            with self._lock:
                self._over.set()
                self._console.clear()

    def place(self, words: str) -> None:
        """Show the place in the queue; none if it is empty."""
        with self._lock:
            if words == self._place or self._over.is_set():
                return
            self._place = words
            self._console.clear()
            if words:
                self._console.status(f"({words})")

    def _run(self) -> None:
        printed = False
        while not self._over.wait(ENGINE_POLL_S):
            note = ENGINE_NOTES.get(self._client.engine_state())
            with self._lock:
                if self._over.is_set() or self._place or not note:
                    continue
                if not printed:
                    self._console.line(f"({note}; the answer begins when it is ready)")
                    printed = True
                self._console.status(f"({note}: {time.monotonic() - self._began:.0f} s)")


def _dims() -> bool:
    """Whether the user wants a terminal to show more than characters (no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def run(url: str, credential: Callable[[], str], model: str, question: str, start: str) -> int:
    """One question, or a dialogue until end of input. `start` is what starts a deployment.

    Returns an exit code.
    """
    console = Console(sys.stderr)
    with Client(url, credential) as client:
        try:
            configuration = client.configure()
        except ChatError as error:
            console.line(f"chat: {error}: start one with `{start}`")
            return 1
        chat = Chat(client, model or configuration, console)
        if not question:
            return dialogue(chat, console)
        try:
            return 0 if chat.send(question) else 1
        except ChatError as error:
            console.line(f"chat: {error}")
        except KeyboardInterrupt:
            console.line("(stopped)")
        return 1


def dialogue(chat: Chat, console: Console) -> int:
    """Read questions and commands until the user leaves. Returns an exit code."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - input() edits lines with it, and keeps their history
    console.line(f"{chat.model}. Ask something; /help lists the commands, Ctrl-D leaves.")
    while True:
        try:
            line = input("> ").strip()
            if line:
                chat.warned = False
                if not line.startswith("/"):
                    chat.send(line)
                elif not chat.obey(line):
                    return 0
        except EOFError:
            console.line("")
            return 0
        except KeyboardInterrupt:
            console.line("")
            if chat.warned:
                return 0
            console.line("(Ctrl-C again or Ctrl-D leaves)")
            chat.warned = True
        except ChatError as error:
            console.line(f"chat: {error}")
