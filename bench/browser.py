"""Chromium for the suite of the page: tabs, the tasks of their main threads, their downloads and
their memory."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shutil
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bench import measure, stacks

if TYPE_CHECKING:
    from playwright import sync_api

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Chromium takes one list only, so those that Playwright turns off are in it, too. The two pages
# behind the address bar use a second of CPU time in each window.
_FEATURES_OFF: Final = (
    "WebUIOmniboxAimPopup",
    "WebUIOmniboxPopup",
    "AimEnabled",
    "AvoidCorsURLLoaderRestartOnRedirect",
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "HttpsFirstBalancedModeAutoEnable",
    "HttpsUpgrades",
    "LensOverlay",
    "MediaRouter",
    "NetworkTimeServiceQuerying",
    "OptimizationHints",
    "PaintHolding",
    "PreconnectToSearch",
    "TcpPortRandomizationWin",
    "ThirdPartyStoragePartitioning",
)
# Without most of these, Chromium tries to reach its maker's hosts at every start.
ARGUMENTS: Final = (
    f"--disable-features={','.join(_FEATURES_OFF)}",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
VIEWPORT: Final[sync_api.ViewportSize] = {"width": 1280, "height": 820}
LONG_MS: Final = 50.0  # a longer task is felt
_MAIN_THREAD: Final = "CrRendererMain"
_TASK: Final = "ThreadControllerImpl::RunTask"
_PAGE_FILES: Final = ("Document", "Stylesheet", "Script", "Image", "Font")


def program() -> str:
    """The path of a Chromium.

    Raises:
        stacks.NotHere: There is none, or no playwright to drive it.
    """
    if importlib.util.find_spec("playwright") is None:
        raise stacks.NotHere("playwright (make install)")
    path = next((path for name in NAMES if (path := shutil.which(name))), None)
    if path is None:
        raise stacks.NotHere("a Chromium (apt-get install chromium)")
    return path


@contextlib.contextmanager
def running(chromium: str) -> Iterator[sync_api.Browser]:
    """A Chromium without a window. No other event loop can run in this thread until its end."""
    from playwright import sync_api

    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@dataclass(frozen=True, slots=True)
class Task:
    """A task of a page's main thread: how long it took, and the CPU time that it used of that.
    The difference is the time of other processes."""

    ms: float
    cpu_ms: float


def main_thread(trace: bytes) -> list[Task]:
    """The tasks of the main threads of pages in a trace of the category `toplevel`.

    A task that runs inside another one is a part of that.
    """
    trace_events = json.loads(trace)["traceEvents"]
    threads = {
        (event["pid"], event["tid"])
        for event in trace_events
        if event["name"] == "thread_name" and event["args"]["name"] == _MAIN_THREAD
    }
    tasks = sorted(
        (
            event
            for event in trace_events
            if event["name"] == _TASK and (event["pid"], event["tid"]) in threads
        ),
        key=lambda event: (event["ts"], -event.get("dur", 0)),
    )
    outer, until = list[Task](), dict[tuple[int, int], float]()
    for event in tasks:
        thread, end = (event["pid"], event["tid"]), event["ts"] + event.get("dur", 0)
        if end > until.get(thread, 0):
            until[thread] = end
            outer.append(Task(event.get("dur", 0) / 1e3, event.get("tdur", 0) / 1e3))
    return outer


def task_values(tasks: Iterable[Task]) -> dict[str, float]:
    """The figures of tasks. `blocking_ms` is the sum of the time above 50 ms of each."""
    durations = list(tasks)
    return {
        "longest_task_ms": max((task.ms for task in durations), default=0.0),
        "longest_task_cpu_ms": max((task.cpu_ms for task in durations), default=0.0),
        "long_tasks": float(sum(task.ms > LONG_MS for task in durations)),
        "blocking_ms": sum(max(0.0, task.ms - LONG_MS) for task in durations),
        "main_thread_cpu_ms": sum(task.cpu_ms for task in durations),
    }


def middle(samples: Iterable[dict[str, float]]) -> dict[str, float]:
    """The median of each value."""
    each = list(samples)
    return {name: statistics.median(values[name] for values in each) for name in each[0]}


class Profile:
    """A browser profile: its downloads and storage are its own, and are deleted with it."""

    def __init__(self, browser: sync_api.Browser, probe: str) -> None:
        self._browser = browser
        self._context = browser.new_context(viewport=VIEWPORT, color_scheme="light")
        self._context.set_default_timeout(60_000)
        self._context.add_init_script(probe)

    def __enter__(self) -> Profile:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

    @contextlib.contextmanager
    def tab(self, *, slower: float = 1.0) -> Iterator[Tab]:
        """A tab, on a processor that is slower by this factor."""
        page = self._context.new_page()
        session = self._context.new_cdp_session(page)
        if slower != 1.0:
            session.send("Emulation.setCPUThrottlingRate", {"rate": slower})
        try:
            yield Tab(self._browser, page, session)
        finally:
            page.close()


class Tab:
    """One tab.

    Attributes:
        complaints: the page's warnings and errors on its console.
    """

    def __init__(
        self, browser: sync_api.Browser, page: sync_api.Page, session: sync_api.CDPSession
    ) -> None:
        self.page = page
        self.complaints: list[str] = []
        self._browser = browser
        self._session = session
        self._kinds: dict[str, str] = {}  # by request
        self._bytes: dict[str, float] = {}  # by request, once it is loaded
        self._loaded_at: dict[str, float] = {}  # the same, in ms since the first request
        self._began_s = 0.0
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        session.on("Network.requestWillBeSent", self._on_request)
        session.on("Network.responseReceived", self._on_response)
        session.on("Network.loadingFinished", self._on_load)
        session.send("Network.enable")

    def probe(self, expression: str, argument: Any = None) -> Any:
        """The value of a member of the probe (page_probe.js), once it has one."""
        return self.page.evaluate(f"argument => window.probe.{expression}", argument)

    @contextlib.contextmanager
    def watch_tasks(self) -> Iterator[list[Task]]:
        """The list is filled with the tasks of the page's main thread when the block has ended."""
        tasks: list[Task] = []
        self._browser.start_tracing(page=self.page, categories=["-*", "toplevel"])
        try:
            yield tasks
        finally:
            tasks += main_thread(self._browser.stop_tracing())

    def paint_values(self) -> dict[str, float]:
        """When the page first painted anything, and first any content."""
        paints = self.page.evaluate(
            "performance.getEntriesByType('paint').map(each => [each.name, each.startTime])"
        )
        return {f"{name.replace('-', '_')}_ms": float(at) for name, at in paints}

    def load_values(self, until_ms: float) -> dict[str, float]:
        """What came over the wire by then, headers included: the page's own files, and requests to
        the API."""
        by_then = [name for name, at in self._loaded_at.items() if at <= until_ms]
        files = [name for name in by_then if self._kinds.get(name) in _PAGE_FILES]
        return {
            "files_kb": sum(self._bytes[name] for name in files) / 1e3,
            "files": float(len(files)),
            "api_requests": float(len(by_then) - len(files)),
        }

    def memory_values(self) -> dict[str, float]:
        """The page's memory after a collection of all garbage."""
        # Objects that a finaliser or an observer releases are collected by the next one.
        for _ in range(3):
            self._session.send("HeapProfiler.collectGarbage")
            self.page.wait_for_timeout(200)
        heap = self._session.send("Runtime.getHeapUsage")
        return {
            "heap_mb": heap["usedSize"] / 1e6,
            "nodes": float(self._session.send("Memory.getDOMCounters")["nodes"]),
        }

    def _on_request(self, event: dict[str, Any]) -> None:
        self._began_s = self._began_s or event["timestamp"]

    def _on_response(self, event: dict[str, Any]) -> None:
        self._kinds[event["requestId"]] = event["type"]

    def _on_load(self, event: dict[str, Any]) -> None:
        self._bytes[event["requestId"]] = float(event["encodedDataLength"])
        self._loaded_at[event["requestId"]] = 1e3 * (event["timestamp"] - self._began_s)


def frame_values(gaps_ms: Iterable[float]) -> dict[str, float]:
    """What a report says of the times between frames."""
    gaps = list(gaps_ms)
    return {f"frame_gap_p{p}_ms": measure.percentile(gaps, p) for p in (50, 99)}
