import { beforeEach, describe, expect, it } from "vitest";
import { WatchSocket, TicketRefused, type WatchSocketState } from "../../src/edge/watchSocket";
import type { Incoming } from "../../src/core/protocol";
import { Clock, flushPromises } from "../world";

class FakeSocket {
  onopen: ((event: never) => void) | null = null;
  onmessage: ((event: never) => void) | null = null;
  onclose: ((event: never) => void) | null = null;
  readonly messages: string[] = [];
  isClosed = false;

  constructor(
    readonly url: string,
    readonly protocols: string[],
  ) {}

  send(text: string): void {
    this.messages.push(text);
  }

  close(): void {
    this.isClosed = true;
  }

  opens(): void {
    this.onopen?.(undefined as never);
  }

  says(data: unknown): void {
    this.onmessage?.({ data } as never);
  }

  dies(code: number): void {
    this.onclose?.({ code } as never);
  }
}

let clock: Clock;
let sockets: FakeSocket[];
let states: WatchSocketState[];
let received: (Incoming | null)[];
let openings: number;
let tickets: number;
let renewals: number;
let refreshes: number;
let renewable: boolean;
let ticketFails: unknown;
let watchSocket: WatchSocket;

beforeEach(() => {
  clock = new Clock();
  sockets = [];
  states = [];
  received = [];
  openings = tickets = renewals = refreshes = 0;
  renewable = true;
  ticketFails = null;
  watchSocket = new WatchSocket({
    urls: () => Promise.resolve(["ws://one", "ws://two", "ws://three"]),
    ticket: () => {
      if (ticketFails !== null) return Promise.reject(ticketFails);
      tickets += 1;
      return Promise.resolve(`t${tickets}`);
    },
    renew: () => {
      renewals += 1;
      return Promise.resolve(renewable);
    },
    refresh: () => {
      refreshes += 1;
      return Promise.resolve();
    },
    connect: (url, protocols) => {
      const socket = new FakeSocket(url, protocols);
      sockets.push(socket);
      return socket;
    },
    later: clock.later,
    now: () => clock.now,
    chance: () => 0.5,
    onState: (state) => states.push(state),
    onOpen: () => (openings += 1),
    onMessage: (message) => received.push(message),
  });
});

const hello = '{"type":"auth_expiring"}';

async function connected(): Promise<FakeSocket> {
  watchSocket.connectNow();
  await flushPromises();
  const socket = sockets.at(-1) as FakeSocket;
  socket.opens();
  return socket;
}

describe("the watch socket", () => {
  it("opens with a fresh ticket each time and carries messages both ways", async () => {
    const socket = await connected();
    expect(socket.protocols).toEqual(["tailrace.v2", "tailrace.v1", "ticket.t1"]);
    expect(states.map((state) => state.kind)).toEqual(["connecting", "open"]);
    socket.says(hello);
    socket.says(new Blob());
    watchSocket.send({ type: "watch" });
    expect([received, socket.messages, openings]).toEqual([[{ kind: "expiring" }], ['{"type":"watch"}'], 1]);
    socket.dies(1006);
    await clock.pass(20_000);
    expect(sockets[1]?.protocols).toEqual(["tailrace.v2", "tailrace.v1", "ticket.t2"]);
  });

  it("tries every address in turn, each later than the last", async () => {
    watchSocket.connectNow();
    await flushPromises();
    const times: number[] = [];
    for (let round = 0; round < 4; round += 1) {
      times.push(clock.now);
      const count = sockets.length;
      sockets.at(-1)?.dies(1006);
      while (sockets.length === count) await clock.pass(50);
    }
    expect(sockets.map((socket) => socket.url)).toEqual(["ws://one", "ws://two", "ws://three", "ws://one", "ws://two"]);
    const gaps = times.slice(1).map((time, place) => time - (times[place] as number));
    expect(gaps).toEqual([...gaps].sort((a, b) => a - b));
  });

  it("uses only the newest of several openings", async () => {
    watchSocket.connectNow();
    await flushPromises();
    watchSocket.connectNow();
    await flushPromises();
    const [older, newer] = sockets as [FakeSocket, FakeSocket];
    older.opens();
    expect([older.isClosed, watchSocket.isOpen]).toEqual([true, false]);
    newer.opens();
    expect([newer.isClosed, watchSocket.isOpen, openings]).toEqual([false, true, 1]);
  });

  it("gives a handshake a deadline", async () => {
    watchSocket.connectNow();
    await flushPromises();
    await clock.pass(11_000);
    expect(sockets[0]?.isClosed).toBe(true);
  });

  it.each([4001, 4002, 4499, 1006, 1011, 1012])("comes back after %i", async (code) => {
    (await connected()).dies(code);
    await clock.pass(2000);
    expect(sockets).toHaveLength(2);
  });

  it.each([4500, 4999, 1009])("stays away after %i until the reader hurries it", async (code) => {
    (await connected()).dies(code);
    await clock.pass(600_000);
    expect(sockets).toHaveLength(1);
    expect(states.at(-1)?.kind).toBe("refused");
    await connected();
    expect(states.at(-1)?.kind).toBe("open");
  });

  it("gets a new credential after 4003 before it comes back", async () => {
    (await connected()).dies(4003);
    await clock.pass(2000);
    expect([renewals, sockets.length]).toEqual([1, 2]);
  });

  it("waits for the reader when no new credential is to be had", async () => {
    renewable = false;
    (await connected()).dies(4003);
    await clock.pass(600_000);
    expect([renewals, sockets.length, states.at(-1)?.kind]).toEqual([1, 1, "refused"]);
  });

  it("stops asking for new credentials when none is accepted", async () => {
    ticketFails = new TicketRefused("no");
    watchSocket.connectNow();
    await clock.pass(600_000);
    expect(renewals).toBe(4 - 1);
    expect(states.at(-1)?.kind).toBe("refused");
  });

  it("keeps trying while the gateway is away, without a storm", async () => {
    ticketFails = new Error("unreachable");
    watchSocket.connectNow();
    await clock.pass(120_000);
    const tries = states.filter((state) => state.kind === "connecting").length;
    expect(tries).toBeGreaterThan(5);
    expect(tries).toBeLessThan(25);
    ticketFails = null;
    await clock.pass(20_000);
    sockets.at(-1)?.opens();
    expect(states.at(-1)?.kind).toBe("open");
  });

  it("reads compact events by what the same socket said before", async () => {
    const tell = (id: string, seq: number): string =>
      JSON.stringify({ type: "watch.events", response_id: id, number: 0, events: [{ type: "response.output_text.delta", sequence_number: seq, delta: "a" }] });
    const old = await connected();
    old.says(tell("one", 4));
    watchSocket.replace();
    await flushPromises();
    const next = sockets[1] as FakeSocket;
    next.opens();
    next.says(tell("two", 7));
    old.says('[0,"b"]');
    next.says('[0,"c"]');
    const delta = (responseId: string, seq: number, text: string): Incoming => ({ kind: "events", responseId, events: [{ kind: "delta", seq, item: "message", delta: text }] });
    expect(received).toEqual([delta("one", 4, "a"), delta("two", 7, "a"), delta("one", 5, "b"), delta("two", 8, "c")]);
  });

  it("leaves a draining server only when another connection stands", async () => {
    const old = await connected();
    watchSocket.draining(4000);
    await clock.pass(3000);
    const next = sockets[1] as FakeSocket;
    expect([next.url, old.isClosed, watchSocket.isOpen]).toEqual(["ws://two", false, true]);
    old.says(hello);
    next.opens();
    expect([old.isClosed, openings, received]).toEqual([true, 2, [{ kind: "expiring" }]]);
    old.dies(4002);
    await clock.pass(60_000);
    expect(sockets).toHaveLength(2);
  });

  it("shows a new ticket on the open connection when its credential is about to expire", async () => {
    const socket = await connected();
    await watchSocket.expiring();
    expect(socket.messages).toEqual([JSON.stringify({ type: "auth", ticket: "t2" })]);
    expect([refreshes, renewals, sockets.length]).toEqual([1, 0, 1]);
  });

  it("asks the reader only after a connection has ended for want of a credential", async () => {
    const socket = await connected();
    ticketFails = new TicketRefused("expired");
    await watchSocket.expiring();
    expect([socket.messages, renewals, watchSocket.isOpen]).toEqual([[], 0, true]);
    socket.dies(4003);
    await flushPromises();
    expect(renewals).toBe(1);
  });

  it("survives that the server closes before the replacement stands", async () => {
    const old = await connected();
    watchSocket.draining(4000);
    await clock.pass(3000);
    old.dies(4002);
    sockets[1]?.opens();
    await clock.pass(60_000);
    expect(sockets).toHaveLength(2);
    expect(states.at(-1)?.kind).toBe("open");
  });

  it("forgets its bad luck once a connection has stood for a while", async () => {
    watchSocket.connectNow();
    for (let round = 0; round < 6; round += 1) {
      await clock.pass(16_000);
      sockets.at(-1)?.dies(1006);
    }
    await clock.pass(16_000);
    sockets.at(-1)?.opens();
    await clock.pass(10_000);
    const count = sockets.length;
    sockets.at(-1)?.dies(1012);
    await clock.pass(1000);
    expect(sockets).toHaveLength(count + 1);
  });

  it("is silent once stopped", async () => {
    const socket = await connected();
    watchSocket.stop();
    socket.dies(1006);
    await clock.pass(60_000);
    expect([socket.isClosed, sockets.length]).toEqual([true, 1]);
  });
});
