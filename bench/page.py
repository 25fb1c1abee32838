"""The chat page in a real browser, on a real deployment with the scripted engine: first screen,
answers while they come, a long chat, memory.

A moment is the end of the frame that shows it. `longest_task_ms` is the time that a task of the
page's main thread took, `longest_task_cpu_ms` the most CPU time that one used; they differ where
others had the processor. `blocking_ms` is the sum of what tasks took above 50 ms. `files_kb` is
the bytes of the page's own files. Memory is measured after a forced collection.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench import browser, measure, page_text, stacks

if TYPE_CHECKING:
    from playwright import sync_api

NAME: Final = "page"
OVER = UNDER = ""
PLOTS: Final = ("first_paint_ms", "usable_ms", "last_turn_ms", "longest_task_ms")
PROBE: Final = Path(__file__).with_name("page_probe.js")

SLOWER: Final = 4.0  # how much slower a processor is emulated
PACE_MS: Final = 5  # 200 tokens a second
TOKENS: Final = 2_000
FEWER_TOKENS: Final = 600
MANY_TOKENS: Final = 10_000
FAST_PACE_MS: Final = 1
TURNS: Final = 150
POOLS: Final[dict[str, Any]] = {
    "default": {"models": ["page"], "engine": "scripted", "max_model_len": 2 * MANY_TOKENS}
}
SCROLL_PX: Final = 400  # a frame; some 24,000 px a second

_SCREEN: Final = "first screen"
_COLD, _WARM, _SLOW = "nothing cached", "cached", "nothing cached, 4 times slower"
_ANSWER: Final = "an answer while it comes, 200 tokens a second"
_STREAM, _STREAM_SLOW = f"{TOKENS:,} tokens", f"{TOKENS:,} tokens, 4 times slower"
_LONG_STREAM: Final = f"{FEWER_TOKENS} tokens behind {TURNS} turns"
_KEYS: Final = "key press to first token"
_DEVICES: Final = "another device of the same user, from the key press"
_CHAT: Final = f"opening a chat of {TURNS} turns"
_LONG, _LONG_SLOW = "page", "4 times slower"
_SCROLL: Final = f"scrolling through {TURNS} turns"
_MEMORY: Final = f"memory, an answer of {MANY_TOKENS:,} tokens"
_GOAL: Final = "goal"
GOALS: Final[dict[str, dict[str, float]]] = {
    _SCREEN: {"first_paint_ms": 400.0, "files_kb": 65.0},
    _ANSWER: {"longest_task_ms": browser.LONG_MS},
    _DEVICES: {"listed_p99_ms": 1_000.0, "asked_p99_ms": 1_000.0},
    _CHAT: {"last_turn_ms": 500.0},
    _SCROLL: {"longest_task_ms": browser.LONG_MS},
}

Measurement = tuple[str, str, dict[str, float]]  # case, side, values


def run(plan: measure.Plan, _shared: Callable[[], stacks.Side]) -> Iterator[measure.Row]:
    chromium = browser.program()
    pools = plan.scratch / "page-pools.json"
    pools.write_text(json.dumps({"pools": POOLS}))
    settings = {"TAILRACE_POOLS": str(pools)}
    with (
        stacks.tailrace(plan.scratch, settings=settings) as stack,
        browser.running(chromium) as started,
    ):
        suite = Suite(started, stack.url, plan)
        for number in range(plan.rounds):
            for case, side, values in suite.all():
                yield measure.Row(NAME, case, side, number, values)
        for case, goals in GOALS.items():
            yield measure.Row(NAME, case, _GOAL, 0, goals)


class Suite:
    """One round after the other, on one deployment."""

    def __init__(self, started: sync_api.Browser, url: str, plan: measure.Plan) -> None:
        self._browser = started
        self._url = url
        self._plan = plan
        self._probe = PROBE.read_text()

    def all(self) -> Iterator[Measurement]:
        """The cases of one round."""
        visits, few = self._plan.pick((1, 1), (5, 3))
        first, middle = self._first_visit, browser.middle
        yield _SCREEN, _COLD, middle(first() for _ in range(visits))
        with self._profile() as profile:
            for _ in range(2):  # the second one keeps the compiled script
                self._visit(profile)
            yield _SCREEN, _WARM, middle(self._visit(profile) for _ in range(visits))
            yield _SCREEN, _SLOW, middle(first(SLOWER) for _ in range(few))
            yield _ANSWER, _STREAM, self._stream(profile, TOKENS)
            yield _ANSWER, _STREAM_SLOW, self._stream(profile, TOKENS, slower=SLOWER)
            yield _KEYS, "page", self._keys(profile, self._plan.pick(5, 20))
            yield _DEVICES, "page", self._devices(profile, self._plan.pick(5, 20))
            yield from ((_MEMORY, when, memory) for when, memory in self._memory(profile).items())
        with self._profile() as profile:
            chat = self._stored_chat(profile)
            at = f"/#c={chat}"
            yield _CHAT, _LONG, middle(self._long(profile, at) for _ in range(visits))
            yield _CHAT, _LONG_SLOW, self._long(profile, at, SLOWER)
            yield _SCROLL, "page", self._scroll(profile, at)
            yield _ANSWER, _LONG_STREAM, self._stream(profile, FEWER_TOKENS, at=at)

    def _profile(self) -> browser.Profile:
        return browser.Profile(self._browser, self._probe)

    def _first_visit(self, slower: float = 1.0) -> dict[str, float]:
        with self._profile() as profile:
            return self._visit(profile, slower)

    def _visit(self, profile: browser.Profile, slower: float = 1.0) -> dict[str, float]:
        with profile.tab(slower=slower) as tab:
            tab.page.goto(self._url)
            times = {f"{name}_ms": float(tab.probe(name)) for name in ("usable", "connected")}
            return {**tab.paint_values(), **times, **tab.load_values(times["usable_ms"])}

    def _open(self, tab: browser.Tab, at: str = "/") -> None:
        tab.page.goto(self._url + at)
        tab.probe("connected")

    def _new_chat(self, tab: browser.Tab) -> None:
        tab.page.keyboard.press("Control+Shift+O")
        tab.page.wait_for_selector(".welcome")

    def _send(
        self,
        tab: browser.Tab,
        tokens: int,
        pace_ms: int,
        text: str,
        question: str = "What is to be known about queues?",
    ) -> None:
        """Send in the open chat; the scripted engine answers with this number of tokens of the
        text."""
        cues = {"script_echo": "1", "script_tokens": str(tokens), "script_pace_ms": str(pace_ms)}
        # One more than there are: an answer that is cut short is another case.
        body = {"input": text, "metadata": cues, "max_output_tokens": tokens + 1}
        tab.probe("ask = argument", body)
        tab.page.fill("#question", question)
        tab.page.press("#question", "Enter")
        tab.probe("firstToken")
        tab.probe("ended(argument)", "completed")

    def _keys(self, profile: browser.Profile, count: int) -> dict[str, float]:
        measurements = []
        with profile.tab() as tab:
            self._open(tab)
            for _ in range(count):
                self._new_chat(tab)
                self._send(tab, 8, PACE_MS, page_text.answer(1))
                measurements.append(float(tab.probe("firstToken")) / 1e3)
        return measure.spread("first_token", measurements)

    def _devices(self, profile: browser.Profile, count: int) -> dict[str, float]:
        """One device's request, seen by another: first in its list, then in the chat it opened."""
        times_by_event: dict[str, list[float]] = {"listed": [], "asked": [], "answered": []}
        with self._profile() as second_tab, profile.tab() as here, second_tab.tab() as there:
            self._open(here)
            self._open(there)
            for number in range(count):
                self._new_chat(here)
                question = f"Queue {number}: what is to be known?"
                there.probe("lookForChat(argument)", question)
                self._send(here, 8, PACE_MS, page_text.answer(1), question)
                self._note(times_by_event, here, there, "listed")
                there.page.goto(here.page.url)  # in the list its name may be another one by now
                there.page.wait_for_selector(".turn")
                there.probe("lookForTurn(argument)", 2)
                self._send(here, 8, PACE_MS, page_text.answer(1))
                self._note(times_by_event, here, there, "asked", "answered")
        return {
            name: ms
            for event, times in times_by_event.items()
            for name, ms in measure.spread(event, times).items()
        }

    def _note(
        self,
        times_by_event: dict[str, list[float]],
        here: browser.Tab,
        there: browser.Tab,
        *names: str,
    ) -> None:
        for name in names:
            seen_ms = float(there.probe(f"seen.{name}")) - float(here.probe("pressedAt"))
            times_by_event[name].append(seen_ms / 1e3)

    def _stream(
        self, profile: browser.Profile, tokens: int, *, at: str = "/", slower: float = 1.0
    ) -> dict[str, float]:
        with profile.tab(slower=slower) as tab:
            self._open(tab, at)
            if at == "/":
                self._new_chat(tab)
            with tab.watch_tasks() as tasks:
                began = tab.page.evaluate("performance.now()")
                self._send(tab, tokens, PACE_MS, page_text.passage())
                ended = tab.page.evaluate("performance.now()")
            return {
                **browser.task_values(tasks),
                "tokens_per_s": 1e3 * tokens / (ended - began),
            }

    def _memory(self, profile: browser.Profile) -> dict[str, dict[str, float]]:
        with profile.tab() as tab:
            self._open(tab)
            self._new_chat(tab)
            # What draws formulas and code stays, once it was needed.
            self._send(tab, TOKENS, FAST_PACE_MS, page_text.passage())
            self._new_chat(tab)
            stages = {"before it": tab.memory_values()}
            self._send(tab, self._plan.pick(TOKENS, MANY_TOKENS), FAST_PACE_MS, page_text.passage())
            stages["behind it"] = tab.memory_values()
            self._new_chat(tab)
            stages["in another chat"] = tab.memory_values()
        return stages

    def _stored_chat(self, profile: browser.Profile) -> str:
        """Store a long chat in this profile, as the page stores its own. Returns its id."""
        with profile.tab() as tab:
            self._open(tab)
            self._send(tab, 8, PACE_MS, page_text.answer(1))
            texts = [page_text.answer(number) for number in range(TURNS)]
            return str(tab.probe("keep(argument)", texts))

    def _long(self, profile: browser.Profile, at: str, slower: float = 1.0) -> dict[str, float]:
        with profile.tab(slower=slower) as tab, tab.watch_tasks() as tasks:
            tab.page.goto(self._url + at)
            times = {
                "last_turn_ms": float(tab.probe("last")),
                "usable_ms": float(tab.probe("usable")),
                "all_turns_ms": float(tab.probe("all(argument)", TURNS)),
            }
        return {**times, **browser.task_values(tasks)}

    def _scroll(self, profile: browser.Profile, at: str) -> dict[str, float]:
        with profile.tab() as tab:
            self._open(tab, at)
            tab.probe("all(argument)", TURNS)
            with tab.watch_tasks() as tasks:
                gaps = tab.probe("scroll(argument)", SCROLL_PX)
        return {
            **browser.task_values(tasks),
            **browser.frame_values(gaps),
            "frames": float(len(gaps)),
        }
