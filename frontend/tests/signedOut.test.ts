import { beforeEach, describe, expect, it } from "vitest";
import { visibleTurns, type Turn } from "../src/core/conversation";
import { ApiError } from "../src/edge/api";
import { BrowserStore } from "../src/edge/store";
import { series } from "./events";
import { Memory } from "./memory";
import { Clock, Server, SharedStorage, Tab, flushPromises } from "./world";

const PIECES = ["One ", "two."];
const refusal = new ApiError(401, { code: "invalid_api_key", message: "no" }, null);

let clock: Clock;
let server: Server;
let memory: Memory;

beforeEach(() => {
  clock = new Clock();
  server = new Server();
  memory = new Memory();
  // The listener of the store is about other tabs, which these tests do not have.
  Object.assign(globalThis, { window: { addEventListener: () => undefined } });
});

/** A tab on this browser's storage; `owner` null: no user is signed in. */
function tab(owner: string | null, name = "a"): Tab {
  return new Tab(server, new SharedStorage(), clock, name, new BrowserStore(memory as unknown as Storage)).begin(owner);
}

/** Asks while the server refuses a request without a session. */
async function askRefused(one: Tab, question = "Count."): Promise<void> {
  server.errors.push({ kind: "refuse", error: refusal });
  one.controller.ask(null, question, null);
  await flushPromises();
}

async function signIn(one: Tab, who: string): Promise<void> {
  one.controller.load(who);
  one.connect();
  await flushPromises();
}

function turns(one: Tab): readonly Turn[] {
  return one.controller.list().flatMap(visibleTurns);
}

describe("a question that is asked without a user", () => {
  it("is sent to the first user who signs in, under the same key", async () => {
    const one = tab(null);
    await askRefused(one);
    expect(turns(one)).toMatchObject([{ phase: "unsent", problem: { waits: true, words: expect.stringContaining("sent when you sign in") as string } }]);
    await signIn(one, "alice");
    expect(turns(one)).toMatchObject([{ question: "Count.", phase: "accepted" }]);
    expect(server.asks.map(({ key }) => key)).toEqual([server.asks[0]?.key, server.asks[0]?.key]);
  });

  it("is there after a reload, and then sent in any tab", async () => {
    await askRefused(tab(null));
    const again = tab(null, "b");
    expect(turns(again)).toMatchObject([{ question: "Count.", phase: "unsent" }]);
    await signIn(again, "alice");
    await clock.pass(5000);
    expect(turns(again)).toMatchObject([{ phase: "accepted" }]);
  });

  it("is sent to them where the browser stores nothing, too", async () => {
    const one = new Tab(server, new SharedStorage(), clock, "a", new BrowserStore(null)).begin(null);
    await askRefused(one);
    await signIn(one, "alice");
    expect(turns(one)).toMatchObject([{ phase: "accepted" }]);
  });

  it("after a sign-out is sent to the former user, and no other one sees it", async () => {
    const one = tab("alice");
    one.controller.load(null);
    await askRefused(one);
    expect(turns(one)[0]?.problem?.words).toContain("the user who was signed in before");
    await signIn(one, "bob");
    expect([turns(one), server.asks.length]).toEqual([[], 1]);
    await signIn(one, "alice");
    expect(turns(one)).toMatchObject([{ question: "Count.", phase: "accepted" }]);
    expect(server.asks).toHaveLength(2);
  });
});

describe("a question of a user who is signed out elsewhere", () => {
  it("that waits for the session is sent when they are back, not to another one", async () => {
    const one = tab("alice");
    await askRefused(one);
    one.controller.load(null);
    await signIn(one, "bob");
    expect([turns(one), server.asks.length]).toEqual([[], 1]);
    await signIn(one, "alice");
    expect(turns(one)).toMatchObject([{ phase: "accepted" }]);
  });

  it("that waits for the end of an answer is sent when they are back", async () => {
    const one = tab("alice");
    const id = one.controller.ask(null, "Count.", null);
    await flushPromises();
    one.controller.ask(id, "And then?", null);
    one.controller.load(null);
    expect(turns(one)).toEqual([]);
    await signIn(one, "alice");
    server.stream("resp_1", PIECES);
    await flushPromises();
    expect(turns(one)).toMatchObject([{ answer: { status: "completed" } }, { question: "And then?", phase: "accepted" }]);
  });

  it("that was sent and not acknowledged is asked once, also in another tab and later", async () => {
    const one = tab("alice");
    let acknowledge = (): void => undefined;
    const arrived = server.ask;
    server.ask = async (ask) => {
      const id = await arrived(ask);
      await new Promise<void>((done) => (acknowledge = done));
      return id;
    };
    one.controller.ask(null, "Count.", null);
    await flushPromises();
    one.controller.load(null);
    acknowledge();
    await flushPromises();
    server.ask = arrived;
    expect(turns(one)).toEqual([]);
    await clock.pass(600_000);
    const other = tab("alice", "b");
    await clock.pass(5000);
    expect(turns(other)).toMatchObject([{ question: "Count.", answer: { responseId: "resp_1" } }]);
    expect(server.log.size).toBe(1);
  });

  it("that is tried again in this moment is not sent to another one", async () => {
    const one = tab("alice");
    let resume = (): void => undefined;
    one.pause = () => new Promise((done) => (resume = done));
    server.errors.push({ kind: "refuse", error: new ApiError(503, { code: "x", message: "no" }, 1000) });
    one.controller.ask(null, "Count.", null);
    await flushPromises();
    await signIn(one, "bob");
    resume();
    await flushPromises();
    expect(server.asks).toHaveLength(1);
  });

  it("whose chat is being created on the server is not sent to another one", async () => {
    let create = (_id: string): void => undefined;
    const one = tab("alice");
    one.library = { ensureRemote: () => new Promise((done) => (create = done)), onSocketOpen: () => undefined } as unknown as Tab["library"];
    one.controller.ask(null, "Count.", null);
    await flushPromises();
    await signIn(one, "bob");
    create("conv_1");
    await flushPromises();
    expect(server.asks).toEqual([]);
    one.library = null;
    await signIn(one, "alice");
    expect(turns(one)).toMatchObject([{ phase: "accepted" }]);
  });

  it("whose answer streams goes on where it was", async () => {
    const one = tab("alice");
    one.controller.ask(null, "Count.", null);
    await flushPromises();
    server.stream("resp_1", PIECES, 5);
    one.controller.load(null);
    server.stream("resp_1", PIECES, series("x", PIECES).length - 1);
    expect(turns(one)).toEqual([]);
    await signIn(one, "alice");
    server.stream("resp_1", PIECES);
    expect(turns(one)).toMatchObject([{ answer: { status: "completed", text: "One two." } }]);
  });
});
