"""Markdown as models write it, for the suite of the page: some 1,500 characters an answer, with
code, a list and a table; a formula in every third one."""

from __future__ import annotations

from typing import Final

_OPENINGS: Final = (
    "A **queue** keeps work that has not been done yet. What matters is not how long it is but how "
    "long the *next* item waits, and that depends on the rate at which `workers` take items out. "
    "Below is a short version, then the parts that people get wrong.",
    "Short answer: yes, but only while both sides agree on the order. As soon as one of them may "
    "see the events in another order, you need a number in each event, and you compare `seq` with "
    "the last one that you have **applied**.",
    "There are two ways to look at this. The first is about *cost*: each step reads everything "
    "before it. The second is about what a reader sees, who does not care how often something was "
    "computed as long as the text on the screen is **right**.",
)
_LISTS: Final = (
    "1. Write the record, with its key.\n"
    "2. Wait until the broker has acknowledged it.\n"
    "   - A timeout says nothing: it may have been written.\n"
    "   - So send it again *under the same key*.\n"
    "3. Only then tell the client.\n",
    "- **Latency**: p50 tells how it feels, p99 whether anybody complains.\n"
    "- **Throughput**: measured when every part is busy.\n"
    "- **Memory**: after a collection, see [the manual](https://example.com/memory).\n"
    "- [x] Checked on an idle machine\n",
)
_CODES: Final = (
    "```python\n"
    "def take(queue: list[int], most: int) -> list[int]:\n"
    '    """The first items, at most so many."""\n'
    "    taken, queue[:most] = queue[:most], []\n"
    "    for number, item in enumerate(taken, start=1):\n"
    '        print(f"{number:>3}: {item}")  # for the reader\n'
    "    return taken\n"
    "```",
    "```javascript\n"
    "const seen = new Map();\n"
    "export async function apply(event) {\n"
    "  const last = seen.get(event.id) ?? -1;\n"
    "  if (event.seq !== last + 1) return 'gap'; // ask again from `last`\n"
    "  seen.set(event.id, event.seq);\n"
    "  return `applied ${event.seq}`;\n"
    "}\n"
    "```",
    "```sql\n"
    "SELECT model, count(*) AS answers, avg(tokens) AS tokens\n"
    "FROM responses\n"
    "WHERE created_at > now() - interval '1 day' AND status = 'completed'\n"
    "GROUP BY model ORDER BY answers DESC LIMIT 10;\n"
    "```",
    "```bash\n"
    'for part in gateway push worker; do\n  echo "restarting $part"\n'
    '  systemctl restart "tailrace-$part" || exit 1\ndone\n'
    "```",
)
_TABLE: Final = (
    "| part | holds | lost at a crash |\n"
    "|:--|:--|--:|\n"
    "| gateway | open requests | 0 |\n"
    "| worker | the answer so far | up to 16 tokens |\n"
    "| browser | what was drawn | nothing, it asks again |\n"
)
_FORMULAS: Final = (
    "By Little's law $L = \\lambda W$, and with one server\n\n"
    "$$W = \\frac{1}{\\mu - \\lambda}, \\qquad \\rho = \\frac{\\lambda}{\\mu} < 1$$\n",
    "The attention of one head is \\(\\operatorname{softmax}(QK^\\top/\\sqrt{d_k})V\\), so\n\n"
    "\\[ \\sum_{i=1}^{n} i = \\frac{n(n+1)}{2} \\]\n",
)
_CLOSING: Final = (
    "The same holds for a browser. It draws a frame in 16 ms or drops it, and whatever runs "
    "longer is felt as a stutter: while text comes, while a reader scrolls, and most of all while "
    "a key is pressed.\n\n"
    "> A measurement that cannot be repeated is an opinion.\n\n"
    "If you want to go further, measure it first: the cases above differ by a factor of two on the "
    "same machine, and what looks like the cause is often only what runs *beside* it. Change one "
    "thing, look again, and keep the number together with the command that gave it."
)


def answer(number: int) -> str:
    """The answer of this number."""

    def pick(options: tuple[str, ...]) -> str:
        return options[number % len(options)]

    parts = [
        pick(_OPENINGS),
        f"## How it works ({number})",
        pick(_LISTS),
        pick(_CODES),
        *([pick(_FORMULAS)] if number % 3 == 0 else []),
        "### Compared",
        _TABLE,
        _CLOSING,
    ]
    return "\n\n".join(part.strip() for part in parts)


def passage() -> str:
    """Four answers, one after the other: some 2,000 tokens of the scripted engine."""
    return "\n\n".join(answer(number) for number in range(4)) + "\n\n"
