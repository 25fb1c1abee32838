/* Fakes for tests of the controller: a clock that tests advance, a store that several tabs share,
   and a server that stores all events and sends them to the tabs that watch the response. */

import { ApiError, type Ask, type Engine } from "../src/edge/api";
import type { Store } from "../src/edge/store";
import type { Conversation } from "../src/core/conversation";
import { readConversation } from "../src/core/storedConversation";
import { readMessage } from "../src/core/protocol";
import { Controller } from "../src/controller";
import type { Library } from "../src/library";
import { series, type Ending, type Raw } from "./events";

export class Clock {
  now = 1_000_000;
  private timers: { at: number; run: () => void }[] = [];

  later = (run: () => void, ms: number): (() => void) => {
    const timer = { at: this.now + ms, run };
    this.timers.push(timer);
    return () => (this.timers = this.timers.filter((other) => other !== timer));
  };

  async pass(ms: number): Promise<void> {
    const until = this.now + ms;
    for (;;) {
      await flushPromises();
      const due = this.timers.filter((timer) => timer.at <= until).sort((a, b) => a.at - b.at)[0];
      if (due === undefined) break;
      this.timers = this.timers.filter((timer) => timer !== due);
      this.now = Math.max(this.now, due.at);
      due.run();
    }
    this.now = until;
  }
}

/** Runs all promises that can continue. */
export async function flushPromises(): Promise<void> {
  for (let round = 0; round < 20; round += 1) await Promise.resolve();
}

export class SharedStorage {
  readonly records = new Map<string, string>();
  readonly deletions = new Map<string, number>();
  readonly tabs: { store: Store; listener: (id: string, conversation: Conversation | null) => void }[] = [];
  full = false;
  /** While set, writes are not announced to other tabs yet. */
  private pending: (() => void)[] | null = null;

  hold(): void {
    this.pending = [];
  }

  release(): void {
    const pending = this.pending ?? [];
    this.pending = null;
    for (const tell of pending) tell();
  }

  tab(): Store {
    const notify = (from: Store, id: string, raw: string | null): void => {
      if (this.pending !== null) {
        this.pending.push(() => notify(from, id, raw));
        return;
      }
      for (const { store, listener } of this.tabs) if (store !== from) listener(id, raw === null ? null : readConversation(raw));
    };
    const store: Store = {
      setOwner: () => undefined,
      recipient: "alice",
      all: () => [...this.records.values()].map(readConversation).filter((each) => each !== null),
      read: (id) => readConversation(this.records.get(id) ?? "null-is-not-a-conversation"),
      write: (conversation) => {
        if (this.full || this.closedStores.has(store)) return false;
        const raw = JSON.stringify(conversation);
        const changed = this.records.get(conversation.id) !== raw;
        this.records.set(conversation.id, raw);
        if (changed) notify(store, conversation.id, raw);
        return true;
      },
      remove: (id) => {
        this.records.delete(id);
        notify(store, id, null);
      },
      deletions: () => [...this.deletions].map(([remote, at]) => ({ remote, at })),
      storeDeletion: ({ remote, at }) => this.deletions.set(remote, at),
      forgetDeletion: (remote) => this.deletions.delete(remote),
      onChange: (listener) => this.tabs.push({ store, listener }),
    };
    return store;
  }

  private readonly closedStores = new Set<Store>();

  close(store: Store): void {
    this.closedStores.add(store);
    const place = this.tabs.findIndex((tab) => tab.store === store);
    if (place !== -1) this.tabs.splice(place, 1);
  }
}

export class Server {
  readonly asks: Ask[] = [];
  readonly cancelled: string[] = [];
  readonly log = new Map<string, Raw[]>();
  private readonly byKey = new Map<string, string>();
  /** The errors of the next requests, in order: before (`refuse`) or after (`lose`) the request was
      accepted. */
  readonly errors: { kind: "refuse" | "lose"; error: ApiError }[] = [];
  engineState: Engine | null = null;
  readonly watchers = new Set<Tab>();
  private count = 0;

  ask = async (ask: Ask): Promise<string> => {
    this.asks.push(ask);
    const mishap = this.errors.shift();
    if (mishap?.kind === "refuse") throw mishap.error;
    const id = this.byKey.get(ask.key) ?? `resp_${(this.count += 1)}`;
    this.byKey.set(ask.key, id);
    if (!this.log.has(id)) this.log.set(id, []);
    if (mishap !== undefined) throw mishap.error;
    return id;
  };

  cancel = async (id: string): Promise<void> => {
    this.cancelled.push(id);
  };

  engine = async (): Promise<Engine | null> => this.engineState;

  /** Appends the events of the series up to `count` and delivers them to the watching tabs. */
  stream(id: string, pieces: string[], count = Infinity, ending: Ending = {}): void {
    this.play(id, series(id, pieces, ending), count);
  }

  /** The same with this series. */
  play(id: string, whole: Raw[], count = Infinity): void {
    const log = this.log.get(id) ?? [];
    const events = whole.slice(log.length, count);
    log.push(...events);
    this.log.set(id, log);
    for (const tab of this.watchers) tab.deliver(id, events);
  }

  get last(): string {
    return `resp_${this.count}`;
  }
}

/** One tab: a controller with a socket that a test can close. */
export class Tab {
  readonly controller: Controller;
  readonly store: Store;
  readonly messages: Record<string, unknown>[] = [];
  readonly warnings: string[] = [];
  replaced = 0;
  drains: number[] = [];
  /** Null: the server has no conversations. */
  library: Library | null = null;
  expiries = 0;
  /** Receives this tab's messages about the feed. */
  feed: ((message: Record<string, unknown>) => void) | null = null;
  /** The response ids that this tab watches. */
  private watching = new Set<string>();
  open = false;
  online = true;
  /** The length of a delay before the next try. */
  pause = (): Promise<void> => Promise.resolve();
  /** The number of next events that are dropped, as by a broken server. */
  swallow = 0;

  constructor(
    private readonly server: Server,
    storage: SharedStorage,
    clock: Clock,
    name: string,
    store: Store = storage.tab(),
  ) {
    this.store = store;
    let ids = 0;
    this.controller = new Controller({
      store: this.store,
      api: server,
      watchSocket: { send: (message) => this.receive(message as Record<string, unknown>), replace: () => (this.replaced += 1), draining: (ms) => this.drains.push(ms), expiring: () => (this.expiries += 1) },
      now: () => clock.now,
      newId: () => `${name}${(ids += 1)}-${clock.now}`,
      pause: () => this.pause(),
      later: clock.later,
      online: () => this.online,
      ensureRemote: async (conversation) => this.library?.ensureRemote(conversation) ?? null,
      onAnswerEnd: (id, turn) => this.library?.onAnswerEnd(id, turn),
      feed: (events) => this.library?.feed(events),
      tab: name,
      warn: (words) => this.warnings.push(words),
    });
    server.watchers.add(this);
  }

  begin(owner: string | null = "alice"): this {
    this.controller.load(owner);
    this.controller.start();
    if (owner !== null) this.connect();
    return this;
  }

  connect(): void {
    this.open = true;
    this.watching.clear();
    this.controller.onSocketOpen();
    this.library?.onSocketOpen();
  }

  cut(): void {
    this.open = false;
    this.controller.onSocketClose();
  }

  /** The tab crashes: pending changes are not written. */
  kill(storage: SharedStorage): void {
    this.cut();
    this.server.watchers.delete(this);
    storage.close(this.store);
  }

  deliver(id: string, events: Raw[]): void {
    if (!this.open || !this.watching.has(id) || events.length === 0) return;
    const delivery = events.slice(this.swallow);
    this.swallow = Math.max(0, this.swallow - events.length);
    if (delivery.length > 0) this.say({ type: "watch.events", response_id: id, events: delivery });
  }

  say(message: object): void {
    this.controller.onSocketMessage(readMessage(JSON.stringify(message), new Map()));
  }

  receive(message: Record<string, unknown>): void {
    this.messages.push(message);
    if (message["type"] === "feed") return this.feed?.(message);
    const id = String(message["response_id"]);
    if (message["type"] === "unwatch") this.watching.delete(id);
    if (message["type"] !== "watch" || !this.open) return;
    const log = this.server.log.get(id);
    if (log === undefined) {
      queueMicrotask(() => this.say({ type: "watch.error", response_id: id, status: 404, error: { type: "invalid_request_error", code: "response_not_found", message: "no such response", param: null } }));
      return;
    }
    this.watching.add(id);
    const after = typeof message["starting_after"] === "number" ? message["starting_after"] : -1;
    const suffix = log.slice(after + 1);
    // Replies arrive after the call, as on a socket.
    queueMicrotask(() => this.deliver(id, suffix));
  }
}
