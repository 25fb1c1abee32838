import { describe, expect, it } from "vitest";
import type { Pipeline } from "../../src/admin/answers";
import * as words from "../../src/admin/words";

describe("figures", () => {
  it("are durations of two units at most", () => {
    expect([null, 0, 59.4, 60, 61, 3600, 3725, 90_000, 200_000].map(words.duration)).toEqual(["–", "0 s", "59 s", "1 min", "1 min 1 s", "1 h", "1 h 2 min", "25 h", "2 d 7 h"]);
  });

  it("never say that all is done while a row waits", () => {
    expect(words.progress({ read: 99_999, lag: 1, share: 0.99999 })).toBe("99,999 of 100,000 rows, 99.9 %");
    expect(words.progress({ read: 5, lag: 0, share: 1 })).toBe("5 of 5 rows, 100 %");
    expect(words.progress({ read: 0, lag: 0, share: 1 })).toBe("0 rows");
  });

  it("of tables are exact", () => {
    expect([1234567, 0.1 + 0.2, 1.5].map(words.exact)).toEqual(["1,234,567", "0.3", "1.5"]);
  });
});

describe("states", () => {
  const pipeline = (state: string, checkedAt: number | null, read: number | null): Pipeline => ({ name: "n", revision: "r", model: null, input: "i", outputs: [], state, checkedAt, progress: read === null ? null : ({ read } as Pipeline["progress"]) });

  it("are words, with the age of figures that are old", () => {
    expect(words.state(pipeline("running", 1, 5))).toBe("Running");
    expect(words.state(pipeline("done", 1, 0))).toBe("No rows yet");
    expect(words.state(pipeline("unknown", null, null))).toBe("Kafka does not answer");
    expect(words.state(pipeline("unknown", 1, 5))).toMatch(/^Kafka does not answer\. The figures are from \d\d:\d\d:\d\d$/);
  });
});
