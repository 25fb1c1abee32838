import { beforeEach, describe, expect, it } from "vitest";
import { ANSWER_MS, DrawingQueue, frameHeight, fromFrame, isDark, type Drawing, type ToFrame } from "../../src/core/diagrams";

describe("what a frame says", () => {
  it.each<unknown>([{ did: "ready" }, { did: "loaded" }, { did: "missing" }, { did: "drawn", id: 1, svg: "<svg/>" }, { did: "wrong", id: 2 }, { did: "shown", height: 10.5 }])("is understood: %j", (message) => {
    expect(fromFrame(message)).toEqual(message);
  });

  it.each<unknown>([null, undefined, "ready", 1, [], {}, { did: "draw" }, { did: "drawn", id: "1", svg: "" }, { did: "drawn", id: 1, svg: null }, { did: "wrong" }, { did: "shown", height: Number.NaN }, { did: "shown", height: "10" }, { did: "shown", height: -1 }])(
    "is left out where it is none of it: %j",
    (message) => {
      expect(fromFrame(message)).toBeNull();
    },
  );

  it("of a height is bounded", () => {
    expect([frameHeight(10.2), frameHeight(640), frameHeight(1e9), frameHeight(Infinity)]).toEqual([11, 640, 640, 640]);
  });
});

it("the reader's theme goes before the system's", () => {
  expect([isDark(undefined, true), isDark(undefined, false), isDark("dark", false), isDark("light", true)]).toEqual([true, false, true, false]);
});

describe("the frame that draws", () => {
  /** The calls of the parts: "open", "close", and what was sent. */
  let log: (string | ToFrame)[];
  let timers: { run: () => void; ms: number }[];
  let drawings: Drawing[];
  let queue: DrawingQueue;

  beforeEach(() => {
    [log, timers, drawings] = [[], [], []];
    queue = new DrawingQueue({
      open: () => log.push("open"),
      close: () => log.push("close"),
      send: (message) => log.push(message),
      later: (run, ms) => {
        const timer = { run, ms };
        timers.push(timer);
        return () => (timers = timers.filter((each) => each !== timer));
      },
      script: "/draws.js",
    });
  });

  const draw = (source: string): void => queue.draw(source, false, (drawing) => drawings.push(drawing));
  const began = (): void => {
    queue.receive({ did: "ready" });
    queue.receive({ did: "loaded" });
  };
  /** The ids and sources of the requests. */
  const draws = (): [number, string][] => log.flatMap((each): [number, string][] => (typeof each === "object" && each.do === "draw" ? [[each.id, each.source]] : []));
  const expire = (): void => {
    const [timer, ...others] = timers;
    expect(others).toEqual([]);
    timer?.run();
  };

  it("is made with the first diagram, and draws one after the other", () => {
    expect(log).toEqual([]);
    draw("a");
    draw("b");
    expect(log).toEqual(["open"]);
    began();
    expect(log[1]).toEqual({ do: "load", script: "/draws.js" });
    expect(draws()).toEqual([[1, "a"]]);
    queue.receive({ did: "drawn", id: 1, svg: "A" });
    queue.receive({ did: "wrong", id: 2 });
    expect(drawings).toEqual([{ svg: "A" }, "wrong"]);
    expect(timers).toEqual([]);
    draw("c");
    expect(draws()).toEqual([[1, "a"], [2, "b"], [3, "c"]]);
    expect(log.filter((each) => each === "open")).toEqual(["open"]);
  });

  it("is believed of the diagram alone that it is at", () => {
    draw("a");
    queue.receive({ did: "drawn", id: 0, svg: "early" });
    queue.receive({ did: "loaded" });
    began();
    queue.receive({ did: "drawn", id: 7, svg: "other" });
    queue.receive({ did: "ready" });
    expect(drawings).toEqual([]);
    queue.receive({ did: "drawn", id: 1, svg: "A" });
    queue.receive({ did: "drawn", id: 1, svg: "again" });
    expect(drawings).toEqual([{ svg: "A" }]);
  });

  it("is taken away when it does not answer, and made anew for the others", () => {
    draw("endless");
    draw("b");
    began();
    expect(timers[0]?.ms).toBe(ANSWER_MS);
    expire();
    expect(drawings).toEqual(["late"]);
    expect(log.slice(-2)).toEqual(["close", "open"]);
    began();
    expect(draws()).toEqual([[1, "endless"], [2, "b"]]);
    queue.receive({ did: "drawn", id: 1, svg: "of the first" });
    queue.receive({ did: "drawn", id: 2, svg: "B" });
    expect(drawings).toEqual(["late", { svg: "B" }]);
  });

  it.each([
    ["does not begin", expire],
    ["cannot be had", (): void => (queue.receive({ did: "ready" }), queue.receive({ did: "missing" }))],
    ["does not come", (): void => (queue.receive({ did: "ready" }), expire())],
  ])("that %s leaves all diagrams late, and the next one tries again", (_, fails) => {
    draw("a");
    draw("b");
    fails();
    expect(drawings).toEqual(["late", "late"]);
    expect(log.at(-1)).toBe("close");
    expect(timers).toEqual([]);
    draw("c");
    expect(log.at(-1)).toBe("open");
    began();
    expect(draws()).toEqual([[1, "c"]]);
  });
});
