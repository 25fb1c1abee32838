import { describe, expect, it } from "vitest";
import { closePolicy, reconnectDelay, drainDelay } from "../../src/core/reconnect";

describe("after a close the page", () => {
  it.each([1000, 1001, 1005, 1006, 1011, 1012, 1013, 1015, 4000, 4001, 4002, 4499])("comes back: %i", (code) => expect(closePolicy(code).reconnect).toBe("again"));
  it.each([4003])("comes back with a new credential: %i", (code) => expect(closePolicy(code).reconnect).toBe("renew"));
  it.each([1007, 1008, 1009, 4500, 4999])("does not come back and says why: %i", (code) => {
    expect(closePolicy(code).reconnect).toBe("refused");
    expect(closePolicy(code).words).not.toBeNull();
  });
});

describe("the delay before coming back", () => {
  it("grows, is never nothing and never endless, and differs between readers", () => {
    for (let attempt = 0; attempt < 40; attempt += 1) {
      expect(reconnectDelay(attempt, 0)).toBeGreaterThanOrEqual(200);
      expect(reconnectDelay(attempt, 0.999)).toBeLessThanOrEqual(15_000);
      expect(reconnectDelay(attempt, 0.999)).toBeGreaterThan(reconnectDelay(attempt, 0));
      expect(reconnectDelay(attempt + 1, 0.5)).toBeGreaterThanOrEqual(reconnectDelay(attempt, 0.5));
    }
  });

  it("before leaving a draining server ends well before that server does", () => {
    for (const chance of [0, 0.5, 0.999]) expect(drainDelay(4000, chance)).toBeLessThanOrEqual(2000);
    expect(drainDelay(0, 0.9)).toBe(0);
  });
});
