import { describe, expect, it } from "vitest";
import { Polling } from "../../src/admin/polling";

/** A clock that tests advance. */
class Room {
  timers: (() => void)[] = [];
  polls = 0;
  isVisible = true;
  private answers: (() => void)[] = [];
  readonly polling = new Polling({
    poll: () => {
      this.polls += 1;
      return new Promise((done) => this.answers.push(done));
    },
    everyMs: 1,
    isVisible: () => this.isVisible,
    later: (run) => {
      this.timers.push(run);
      return () => void this.timers.splice(this.timers.indexOf(run), 1);
    },
  });

  async answer(): Promise<void> {
    this.answers.shift()?.();
    await new Promise((done) => setTimeout(done));
  }

  ring(): void {
    this.timers.shift()?.();
  }
}

describe("polling", () => {
  it("asks again after each answer, and never two at once", async () => {
    const room = new Room();
    room.polling.now();
    room.polling.now();
    expect([room.polls, room.timers.length]).toEqual([1, 0]);
    await room.answer(); // what was wanted meanwhile is asked now
    expect([room.polls, room.timers.length]).toEqual([2, 0]);
    await room.answer();
    expect(room.timers.length).toBe(1);
    room.ring();
    expect(room.polls).toBe(3);
  });

  it("has one timer, however often it is hurried", async () => {
    const room = new Room();
    room.polling.now();
    await room.answer();
    room.polling.now();
    await room.answer();
    expect([room.polls, room.timers.length]).toEqual([2, 1]);
  });

  it("does not ask while the page is hidden", async () => {
    const room = new Room();
    room.polling.now();
    await room.answer();
    room.isVisible = false;
    room.ring();
    room.ring();
    expect([room.polls, room.timers.length]).toEqual([1, 1]);
    room.isVisible = true;
    room.ring();
    expect(room.polls).toBe(2);
  });
});
