"""The gate of `make check` for manifests and images: offline, in seconds. Prints the checks, and
exits 1 when anything is wrong.

python k8s/validate.py [-v]      -v names every single thing
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # run as a script, its own folder is first on the path, not the tree

from k8s.gate import images, kafka, network, observability, pods, render, schema, sources, wiring
from k8s.gate.manifests import Check, Manifests, Verdict

CHECKS: dict[str, Check] = {
    "resources fit their schemas": schema.valid,
    **pods.CHECKS,
    **kafka.CHECKS,
    **network.CHECKS,
    **wiring.CHECKS,
    **observability.CHECKS,
}


def examine(m: Manifests) -> Iterator[tuple[str, Verdict]]:
    """Run every check on one rendered target. A check without any object fails, because it would
    pass on an empty folder."""
    for name, check in CHECKS.items():
        verdicts = list(check(m))
        yield from ((name, v) for v in verdicts or [Verdict(m.target, "found nothing to look at")])


def report(where: str, results: list[tuple[str, Verdict]], seconds: float, *, verbose: bool) -> int:
    """Print one line for a target and one for each problem. Returns the number of problems."""
    bad = [(name, v) for name, v in results if v.problem]
    checks = len({name for name, _ in results})
    print(
        f"{where:<14} {checks:>3} checks on {len(results):>4} things: "
        f"{f'{len(bad)} WRONG' if bad else 'all well'}  ({seconds:.1f} s)"
    )
    for name, verdict in results if verbose else bad:
        print(
            f"  {'WRONG' if verdict.problem else 'ok   '} {name}: "
            f"{verdict.subject}{f' {verdict.problem}' if verdict.problem else ''}"
        )
    return len(bad)


def main() -> int:
    began, verbose, wrong = time.monotonic(), "-v" in sys.argv[1:], 0
    targets = render.targets()
    with (
        ThreadPoolExecutor() as pool
    ):  # kubectl is a process of its own; the checks then run one after the other
        renders = {target: pool.submit(render.render, target) for target in targets}
        at = time.monotonic()
        wrong += report(
            "files",
            [*sources.check(), *images.check(images.load())],
            time.monotonic() - at,
            verbose=verbose,
        )
        for target, building in renders.items():
            at = time.monotonic()
            try:
                m = building.result()
            except render.RenderError as error:
                results = [("kustomize builds", Verdict(target.name, str(error)))]
            else:
                results = [("kustomize builds", Verdict(m.target)), *examine(m)]
            wrong += report(
                target.relative_to(render.HERE).as_posix(),
                results,
                time.monotonic() - at,
                verbose=verbose,
            )
    print(
        f"manifests: {f'{wrong} problems' if wrong else 'valid'} in "
        f"{time.monotonic() - began:.1f} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
