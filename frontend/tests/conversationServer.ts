/* A fake server with conversations, for tests of the library (docs/protocol.md, sections 15 and
   16). */

import { ApiError, type Ask } from "../src/edge/api";
import { PAGE_ID, readSummary, type Changes, type Match, type Page, type Summary, type Tree } from "../src/edge/conversations";
import { readRow, type Row } from "../src/core/serverTurns";
import { Library } from "../src/library";
import { Clock, Server, SharedStorage, Tab } from "./world";

interface StoredConversation {
  id: string;
  metadata: Record<string, string>;
  title: string;
  pinned: boolean;
  head: string | null;
  usedAt: number;
  nodes: { id: string; parent: string | null; at: number }[];
}

interface FeedMessage {
  type: string;
  position: string;
  [field: string]: unknown;
}

export class ConversationServer extends Server {
  readonly conversations = new Map<string, StoredConversation>();
  readonly titles: string[] = [];
  offered = true;
  titled = true;
  away = false;
  /** The reader has too many feeds. */
  refusesFeeds = false;
  /** The model's answer to the request for a title. */
  title = "A title";
  /** Responses whose request is not in the log yet. */
  readonly pendingWrites = new Set<string>();
  private readonly feedMessages: FeedMessage[] = [];
  private readonly devices = new Set<Tab>();
  private readonly bodies = new Map<string, Ask>();

  constructor(private readonly clock: Clock) {
    super();
    const submit = this.ask;
    this.ask = async (ask: Ask): Promise<string> => {
      const id = await submit(ask);
      if (!this.bodies.has(id)) this.turn(id, ask);
      return id;
    };
  }

  /** A tab in another browser. */
  device(name: string, storage = new SharedStorage()): Tab {
    const tab = new Tab(this, storage, this.clock, name);
    tab.library = new Library({
      api: this.api,
      server: async () => ({ conversations: this.offered, titles: this.titled, searches: true }),
      copies: tab.controller,
      store: tab.store,
      send: (message) => tab.receive(message as Record<string, unknown>),
      now: () => this.clock.now,
      later: this.clock.later,
      tab: name,
      warn: (words) => tab.warnings.push(words),
    });
    tab.feed = ({ after }) => this.follow(tab, after);
    return tab.begin();
  }

  cutOff(tab: Tab): void {
    this.devices.delete(tab);
    tab.cut();
  }

  /** Does the same as another client. */
  tell(type: string, fields: Record<string, unknown>): void {
    const event = { type, position: String(this.feedMessages.length + 1), ...fields };
    this.feedMessages.push(event);
    for (const tab of this.devices) tab.say({ type: "feed.events", events: [event] });
  }

  readonly api = {
    create: async (key: string, title: string, metadata: Readonly<Record<string, string>>): Promise<string> => {
      this.here();
      const id = `conv_${key}`;
      if (!this.conversations.has(id)) {
        this.conversations.set(id, { id, metadata: { ...metadata, [PAGE_ID]: key }, title, pinned: false, head: null, usedAt: this.clock.now, nodes: [] });
        this.tell("conversation.created", { conversation_id: id, conversation: this.summary(id) });
      }
      return id;
    },
    list: async (after: string | null): Promise<Page<Summary>> => {
      this.here();
      const all = [...this.conversations.values()].sort((a, b) => b.usedAt - a.usedAt);
      const from = after === null ? 0 : all.findIndex(({ id }) => id === after) + 1;
      const rows = all.slice(from, from + 3).map(({ id }) => readSummary(this.summary(id)) as Summary);
      return { rows, next: from + 3 < all.length ? (rows.at(-1)?.id ?? null) : null };
    },
    find: async (id: string): Promise<Summary | null> => readSummary(this.summary(this.get(id).id)),
    turns: async (id: string, after: string | null): Promise<Tree> => {
      const { nodes, head } = this.get(id);
      const from = after === null ? 0 : nodes.findIndex((node) => node.id === after) + 1;
      const rows = nodes.slice(from, from + 2).map((node) => readRow(this.row(node)) as Row);
      return { rows, next: from + 2 < nodes.length ? (rows.at(-1)?.id ?? null) : null, head };
    },
    search: async (words: string): Promise<Match[]> => {
      const ids = [...this.conversations.values()].filter(({ nodes }) => nodes.some((node) => JSON.stringify(this.row(node)).includes(words)));
      return ids.map(({ id }) => ({ conversation: readSummary(this.summary(id)) as Summary, snippet: `… ${words} …` }));
    },
    change: async (id: string, changes: Changes): Promise<void> => {
      const conversation = this.get(id);
      for (const [name, value] of Object.entries(changes)) {
        Object.assign(conversation, { [name]: value as unknown });
        this.tell("conversation.updated", { conversation_id: id, [name]: value as unknown });
      }
    },
    remove: async (id: string): Promise<void> => {
      this.get(id);
      this.conversations.delete(id);
      this.tell("conversation.deleted", { conversation_id: id });
    },
    titleFor: async (_model: string | null, question: string): Promise<string> => {
      this.here();
      this.titles.push(question);
      return this.title;
    },
  };

  private turn(id: string, ask: Ask): void {
    this.bodies.set(id, ask);
    if (ask.conversation === null) return;
    const conversation = this.get(ask.conversation);
    conversation.nodes.push({ id, parent: ask.previousResponseId, at: this.clock.now });
    [conversation.head, conversation.usedAt] = [id, this.clock.now];
    this.tell("conversation.turn", { conversation_id: conversation.id, response_id: id, parent: ask.previousResponseId });
  }

  private row({ id, parent, at }: { id: string; parent: string | null; at: number }): Record<string, unknown> {
    const ask = this.bodies.get(id);
    const row = { id, parent, created_at: Math.floor(at / 1000), input: [] as unknown[], response: null as unknown };
    if (ask === undefined || this.pendingWrites.has(id)) return row;
    const events = this.log.get(id) ?? [];
    const end = events.at(-1);
    const isEnded = /completed|incomplete|failed/.test(end?.type ?? "");
    const text = events.flatMap((event) => (event.type === "response.output_text.delta" ? [String(event["delta"])] : [])).join("");
    const output = [{ type: "message", content: [{ type: "output_text", text }] }];
    const response = isEnded ? { ...(end?.["response"] as object), output } : { id, status: "in_progress", output };
    row.input = typeof ask.input === "string" ? [{ type: "message", role: "user", content: ask.input }] : [...ask.input];
    return { ...row, response: { ...response, model: ask.model, metadata: ask.metadata } };
  }

  private follow(tab: Tab, after: unknown): void {
    if (this.refusesFeeds) return tab.say({ type: "watch.error", response_id: null, status: 429, error: { code: "rate_limit_exceeded", message: "too many" } });
    this.devices.add(tab);
    const messages = after === undefined ? [] : this.feedMessages.slice(Number(after));
    const ready = { type: "feed.ready", position: String(this.feedMessages.length) };
    queueMicrotask(() => tab.say({ type: "feed.events", events: [...messages, ready] }));
  }

  private get(id: string): StoredConversation {
    this.here();
    const conversation = this.conversations.get(id);
    if (conversation === undefined) throw new ApiError(404, { code: "conversation_not_found", message: "no" }, null);
    return conversation;
  }

  private here(): void {
    if (this.away) throw new ApiError(503, { code: "unavailable", message: "away" }, null);
  }

  private summary(id: string): Record<string, unknown> {
    const conversation = this.conversations.get(id) as StoredConversation;
    return { ...conversation, created_at: Math.floor(conversation.usedAt / 1000), updated_at: Math.floor(conversation.usedAt / 1000) };
  }
}
