/* What the suite of the page (page.py) adds to the page, before the page's own scripts run. */

window.probe = (() => {
  const DEADLINE_MS = 120_000;

  /** The time, in ms since the navigation, when the frame is over in which `ready()` is first true. */
  const when = (ready) =>
    new Promise((done, fail) => {
      const began = performance.now();
      const look = () => {
        if (!ready()) {
          if (performance.now() - began < DEADLINE_MS) requestAnimationFrame(look);
          else fail(new Error(`not within ${DEADLINE_MS} ms: ${ready}`));
          return;
        }
        const over = new MessageChannel(); // runs behind the frame, a timer may be late
        over.port1.onmessage = () => done(performance.now());
        over.port2.postMessage(null);
      };
      requestAnimationFrame(look);
    });

  const drawn = (prose) => prose !== null && prose.firstElementChild !== null;
  const inSight = (element) => {
    const { top, bottom } = element.getBoundingClientRect();
    return bottom > 0 && top < innerHeight;
  };
  const turns = () => document.querySelectorAll(".turn");

  const probe = {
    when,
    /** Sent with the next questions instead of what the page says: `input`, `metadata`, `max_output_tokens`. */
    ask: null,
    /** From the key press that sends a question to the frame that shows the first of its answer, in ms. */
    firstToken: null,
    usable: when(() => {
      const field = document.querySelector("#question");
      return field !== null && !field.disabled && inSight(field);
    }),
    connected: when(() => document.querySelector('.status[data-state="open"]') !== null),
    /** The time of day, in ms, of the key press that sent a question last. */
    pressedAt: null,
    /** The time of day, in ms, when what another device does is seen in this tab: a chat in the list, or in the open chat the turn
     *  of this number and the first of its answer. Each is begun before the other device acts, and read afterwards. */
    seen: {},
    look: (name, ready) => {
      probe.seen[name] = when(ready).then(() => Date.now());
    },
    lookForChat: (words) => probe.look("listed", () => [...document.querySelectorAll(".conversations li")].some((chat) => chat.textContent.includes(words))),
    lookForTurn: (count) => {
      probe.look("asked", () => turns().length === count);
      probe.look("answered", () => turns().length === count && drawn([...turns()].at(-1).querySelector(".prose")));
    },
    /** In a chat that the address names: the turn that is called "last" is drawn, and its answer is in sight. */
    last: location.hash.startsWith("#c=")
      ? when(() => {
          const prose = document.querySelector('.turn[data-turn="last"] .prose');
          return drawn(prose) && inSight(prose.lastElementChild);
        })
      : null,
    /** So many turns are drawn, with their formulas. */
    all: (count) =>
      when(() => {
        const found = [...turns()];
        return found.length === count && found.every((turn) => drawn(turn.querySelector(".prose"))) && document.querySelector(".math.source") === null;
      }),
    ended: (status) => when(() => document.querySelector(`.turn:last-child[data-status="${status}"]`) !== null),
    /** Scrolls from end to end, so many pixels a frame. Gives the times between frames, in ms. */
    scroll: (pixels) =>
      new Promise((done) => {
        const box = document.querySelector(".scroll");
        const gaps = [];
        let before = performance.now();
        box.dispatchEvent(new WheelEvent("wheel", { deltaY: -1 })); // the reader takes over
        const step = (now) => {
          gaps.push(now - before);
          before = now;
          box.scrollTop -= pixels;
          if (box.scrollTop > 0) requestAnimationFrame(step);
          else done(gaps.slice(1));
        };
        requestAnimationFrame(step);
      }),
    /** Keeps a chat of as many turns as there are texts, made from the one turn of the chat that is open. Gives its id. */
    keep: (texts) => {
      const named = new URLSearchParams(location.hash.slice(1)).get("c"); // by its id here or at the server
      const chats = Object.entries(localStorage).flatMap(([key, kept]) => (key.includes(".conversation.") ? [[key, JSON.parse(kept)]] : []));
      const [key, chat] = chats.find(([, { id, remote }]) => id === named || remote === named);
      const [first] = chat.turns;
      const name = (number) => (number === texts.length - 1 ? "last" : `${first.id}${number}`);
      const turns = texts.map((text, number) => ({
        ...first,
        id: name(number),
        parent: number === 0 ? null : name(number - 1),
        question: `Question ${number + 1}: what is to be known about queues, and what is often wrong?`,
        askedAt: first.askedAt + number,
        sentAt: first.sentAt + number,
        answer: { ...first.answer, responseId: `${first.answer.responseId}${number}`, text },
      }));
      const id = `${chat.id}long`;
      localStorage.setItem(key.replace(chat.id, id), JSON.stringify({ ...chat, id, remote: null, turns }));
      return id;
    },
  };

  addEventListener(
    "keydown",
    ({ key, target, timeStamp }) => {
      if (key !== "Enter" || target.id !== "question") return;
      probe.pressedAt = Date.now();
      const before = turns().length;
      const first = when(() => turns().length > before && drawn([...turns()].at(-1).querySelector(".prose")));
      probe.firstToken = first.then((at) => at - timeStamp);
    },
    true,
  );

  const fetched = window.fetch;
  window.fetch = (address, options) => {
    if (probe.ask === null || options?.method !== "POST" || !String(address).endsWith("/v1/responses")) return fetched(address, options);
    const body = JSON.parse(options.body);
    delete body.previous_response_id; // the server knows no turn of a chat that was made here
    const changed = { ...body, ...probe.ask, metadata: { ...body.metadata, ...probe.ask.metadata } };
    return fetched(address, { ...options, body: JSON.stringify(changed) });
  };

  return probe;
})();
