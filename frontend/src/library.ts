/* The conversations on the server, and this browser's copies of them. A copy is updated when it is
   opened, and when the feed reports a change on another device. Names, pins and the visible version
   are sent to the server.

   The server's data takes precedence. Data that the server does not have, such as a question that
   waits for a connection, belongs to the controller. */

import * as conversations from "./core/conversation";
import type { Conversation, Turn } from "./core/conversation";
import type { FeedEvent } from "./core/feed";
import { fromMetadata, isSame, toMetadata } from "./core/settings";
import { titleIn } from "./core/titles";
import { ApiError, type Config } from "./edge/api";
import { PAGE_ID, readSummary, type Conversations, type Summary } from "./edge/conversations";
import type { Store } from "./edge/store";
import { POLL_AGAIN_MS, TurnReader } from "./turnReader";

export interface LibraryParts {
  api: Pick<Conversations, "create" | "list" | "find" | "turns" | "search" | "change" | "remove" | "titleFor">;
  /** The features of the server. Throws ApiError. */
  server(): Promise<Pick<Config, "conversations" | "titles" | "searches">>;
  copies: {
    get(id: string): Conversation | null;
    all(): Conversation[];
    /** Merges the server's copy, and follows running answers. */
    absorb(conversation: Conversation): void;
    remove(id: string): Conversation | null;
    restore(conversation: Conversation): void;
  };
  store: Pick<Store, "deletions" | "storeDeletion" | "forgetDeletion">;
  send(message: object): void;
  now(): number;
  later(run: () => void, ms: number): () => void;
  tab: string;
  warn(words: string): void;
}

/** The time in which a deletion can be undone. */
export const UNDO_MS = 7000;
/** While a request of this tab runs, a turn in the feed may be its own: it is checked again after
    this time. */
const OWN_MS = 1000;
/** After this time the list is requested without the feed. */
const LIST_ANYWAY_MS = 5000;

export class Library {
  private readonly turns: TurnReader;
  private position: string | null = null;
  private listed = false;
  private next: string | null = null;
  private current: string | null = null;
  /** Counts users: a reply to a request for another user is dropped. */
  private user = 0;
  onChange: () => void = () => undefined;

  constructor(private readonly parts: LibraryParts) {
    this.turns = new TurnReader({
      api: parts.api,
      copy: (remote) => this.copy(remote),
      absorb: (conversation) => parts.copies.absorb(conversation),
      onIncomplete: (remote) => void this.refreshCopy(remote),
      onChange: () => this.onChange(),
      now: parts.now,
      later: parts.later,
      warn: (error) => this.warn(error),
    });
  }

  /** Called for another user: drops everything. */
  reset(): void {
    this.user += 1;
    this.turns.reset();
    [this.position, this.listed, this.next] = [null, false, null];
  }

  onSocketOpen(): void {
    this.parts.send({ type: "feed", ...(this.position === null ? {} : { after: this.position }) });
    for (const { remote, at } of this.parts.store.deletions()) if (this.parts.now() - at > UNDO_MS) void this.removeOnServer(remote);
    this.turns.retry();
    // The server may refuse the feed, for example where too many devices have one. The list is
    // requested all the same.
    const user = this.user;
    this.parts.later(() => {
      if (!this.listed && user === this.user) void this.refresh();
    }, LIST_ANYWAY_MS);
  }

  /** Reads the newest page of the list, and the open conversation. */
  refresh(): Promise<void> {
    return this.orWarn(async () => {
      if (!(await this.keepsConversations())) return;
      const user = this.user;
      const page = await this.parts.api.list(null);
      if (user !== this.user) return;
      [this.listed, this.next] = [true, page.next];
      for (const summary of page.rows) this.mergeSummary(summary);
      await this.dropDeleted(page.rows, page.next !== null);
      if (this.current !== null) this.open(this.current);
      this.onChange();
    });
  }

  /** Whether the server has conversations that are not listed yet. */
  get hasMore(): boolean {
    return this.next !== null;
  }

  more(): Promise<void> {
    return this.orWarn(async () => {
      if (this.next === null) return;
      const [user, page] = [this.user, await this.parts.api.list(this.next)];
      if (user !== this.user) return;
      this.next = page.next;
      for (const summary of page.rows) this.mergeSummary(summary);
      this.onChange();
    });
  }

  feed(events: readonly FeedEvent[]): void {
    for (const event of events) {
      this.position = event.position;
      this.handle(event);
    }
  }

  private handle(event: FeedEvent): void {
    switch (event.kind) {
      case "ready":
        if (!this.listed) void this.refresh();
        return;
      case "reset":
        this.turns.forget();
        void this.refresh();
        return;
      case "created": {
        const summary = readSummary(event.conversation);
        // A conversation that this browser created. Others are listed with their first turn.
        if (summary !== null && this.copy(summary.id, summary.metadata) !== null) this.mergeSummary(summary);
        return;
      }
      case "labelled":
        return this.onLabel(event);
      case "chosen":
        return this.turns.onHeadMove(event.id, event.head);
      case "turn":
        return this.onTurn(event.id, event.response, event.parent);
      case "changed":
        if (event.response === null) {
          this.turns.forget(event.id);
          void this.refreshCopy(event.id);
        } else if (this.turns.hasRead(event.id) && !this.turns.hasTurn(event.id, event.response)) void this.refreshCopy(event.id);
        return;
      case "deleted": {
        const copy = this.copy(event.id);
        if (copy !== null) this.parts.copies.remove(copy.id);
        this.turns.forget(event.id);
        this.parts.store.forgetDeletion(event.id);
        return;
      }
      case "other":
        return;
    }
  }

  private onLabel({ id, name, pinned, metadata }: FeedEvent & { kind: "labelled" }): void {
    const copy = this.copy(id);
    if (copy === null) return;
    this.relabel(copy, { name: name ?? copy.label.name, pinned: pinned ?? copy.label.pinned });
    if (metadata !== null) this.mergeSettings(id, metadata);
  }

  private onTurn(remote: string, response: string, parent: string | null): void {
    const copy = this.copy(remote);
    this.turns.onTurn(remote, response, parent);
    if (copy === null) return void this.refreshCopy(remote);
    if (this.turns.hasTurn(remote, response)) return; // its time is known
    if (copy.turns.some((turn) => turn.phase === "sending" && turn.tab === this.parts.tab)) {
      this.parts.later(() => this.onTurn(remote, response, parent), OWN_MS);
      return;
    }
    if (copy.usedAt < this.parts.now() - POLL_AGAIN_MS) this.parts.copies.absorb({ ...copy, usedAt: this.parts.now() });
    void this.refreshCopy(remote);
  }

  // A conversation that is not open is read when it is opened.
  private async refreshCopy(remote: string): Promise<void> {
    const copy = this.copy(remote);
    if (copy !== null && copy.id !== this.current) this.turns.markStale(remote);
    else if (copy !== null) await this.turns.read(remote);
    else {
      await this.orWarn(async () => {
        this.listed = false; // in case the request fails
        await this.addByRemote(remote);
        this.listed = true;
      });
    }
  }

  private async addByRemote(remote: string): Promise<string | null> {
    const [user, summary] = [this.user, await this.parts.api.find(remote).catch(nullIfMissing)];
    if (user !== this.user || summary === null) return null;
    const id = this.mergeSummary(summary);
    this.onChange();
    return id;
  }

  /** The local id of the conversation in an address; null where there is none. Throws ApiError. */
  async resolve(name: string): Promise<string | null> {
    if (this.parts.copies.get(name) !== null) return name;
    const copy = this.copy(name);
    if (copy !== null) return copy.id;
    return name.startsWith("conv_") && (await this.keepsConversations()) ? this.addByRemote(name) : null;
  }

  /** By conversation in which the server finds these words: the text around them; empty for its
      title. Throws ApiError. */
  async search(words: string): Promise<Map<string, string>> {
    const snippets = new Map<string, string>();
    if (!(await this.parts.server()).searches) return snippets;
    const [user, matches] = [this.user, await this.parts.api.search(words)];
    if (user !== this.user) return snippets;
    for (const { conversation, snippet } of matches) {
      const id = this.mergeSummary(conversation);
      if (id !== null) snippets.set(id, snippet);
    }
    return snippets;
  }

  /** Called when a conversation is opened; null: a new one. */
  open(id: string | null): void {
    this.current = id;
    if (id !== null) void this.load(id);
  }

  /** Reads the turns that this browser does not have. */
  async load(id: string): Promise<void> {
    const remote = this.parts.copies.get(id)?.remote ?? null;
    if (remote !== null) await this.turns.load(remote);
  }

  /** Whether the turns of a conversation are here, are being read, or cannot be read now. */
  state(conversation: Conversation): "here" | "coming" | "away" {
    if (conversation.remote === null || conversation.turns.length > 0) return "here";
    return this.turns.state(conversation.remote);
  }

  /** Creates the conversation on the server with its first question, and returns its id there.
      Null: it stays in this browser. Throws ApiError. */
  async ensureRemote(conversation: Conversation): Promise<string | null> {
    if (conversation.remote !== null) return conversation.remote;
    // A conversation on the server cannot continue answers that were made without one.
    const user = this.user;
    if (conversation.turns.some(({ answer }) => answer !== null) || !(await this.keepsConversations()) || user !== this.user) return null;
    const remote = await this.parts.api.create(conversation.id, conversations.title(conversation), toMetadata(conversation.settings));
    this.turns.begin(remote);
    return remote;
  }

  async rename(id: string, name: string): Promise<void> {
    await this.label(id, { name: name.trim().slice(0, LONGEST_NAME) }, (copy) => ({ title: copy.label.name }));
  }

  async pin(id: string, pinned: boolean): Promise<void> {
    await this.label(id, { pinned }, () => ({ pinned }));
  }

  /** Sends changed settings to the server, for other devices. */
  set(id: string): void {
    const copy = this.parts.copies.get(id);
    const remote = copy?.remote ?? null;
    if (copy === null || remote === null) return;
    void this.orWarn(async () => {
      const metadata = (await this.parts.api.find(remote))?.metadata ?? {};
      const others = Object.entries(metadata).filter(([key]) => !key.startsWith(KEY_PREFIX) || key === PAGE_ID);
      await this.parts.api.change(remote, { metadata: { ...Object.fromEntries(others), ...toMetadata(copy.settings) } });
    });
  }

  /** Sends the visible version to the server, for other devices. */
  publishHead(id: string): void {
    const copy = this.parts.copies.get(id);
    const head = copy === null ? null : (conversations.visibleTurns(copy).flatMap(conversations.chain).at(-1)?.responseId ?? null);
    if (copy?.remote == null || head === null) return;
    const remote = copy.remote;
    this.turns.setHead(remote, head);
    void this.orWarn(() => this.parts.api.change(remote, { head }));
  }

  /** An answer has ended. The tab that asked the first question of a conversation requests a title
      for it. */
  onAnswerEnd(id: string, turn: Turn): void {
    const copy = this.parts.copies.get(id);
    if (copy?.remote == null || !isUnnamed(copy, turn) || turn.parent !== null || turn.tab !== this.parts.tab) return;
    if (turn.answer === null || turn.answer.text === "" || turn.answer.status === "failed") return;
    const user = this.user;
    void this.orWarn(async () => {
      if (!(await this.parts.server()).titles || user !== this.user) return;
      const name = titleIn(await this.parts.api.titleFor(turn.model, turn.question, turn.answer?.text ?? ""));
      const now = this.parts.copies.get(id);
      if (name !== "" && now !== null && isUnnamed(now, turn)) await this.rename(id, name);
    });
  }

  /** Removes it here at once, and on the server after UNDO_MS. Until then `restore` undoes it. */
  remove(id: string): Conversation | null {
    const conversation = this.parts.copies.remove(id);
    const remote = conversation?.remote ?? null;
    if (remote !== null) {
      this.parts.store.storeDeletion({ remote, at: this.parts.now() });
      this.parts.later(() => void this.removeOnServer(remote), UNDO_MS);
    }
    return conversation;
  }

  restore(conversation: Conversation): void {
    if (conversation.remote !== null) this.parts.store.forgetDeletion(conversation.remote);
    this.parts.copies.restore(conversation);
  }

  private async removeOnServer(remote: string): Promise<void> {
    if (!this.parts.store.deletions().some((each) => each.remote === remote)) return; // undone
    await this.orWarn(async () => {
      await this.parts.api.remove(remote).catch(nullIfMissing);
      this.parts.store.forgetDeletion(remote);
      this.turns.forget(remote);
    });
  }

  private async label(id: string, changes: Partial<conversations.Label>, serverChange: (copy: Conversation) => object): Promise<void> {
    const copy = this.parts.copies.get(id);
    if (copy === null) return;
    const before = copy.label;
    const next = this.relabel(copy, { ...before, ...changes });
    if (next.remote === null) return;
    try {
      await this.parts.api.change(next.remote, serverChange(next));
    } catch (error) {
      const now = this.parts.copies.get(id);
      if (now !== null) this.relabel(now, before);
      throw error;
    }
  }

  private relabel(copy: Conversation, { name, pinned }: Pick<conversations.Label, "name" | "pinned">): Conversation {
    if (copy.label.name === name && copy.label.pinned === pinned) return copy;
    const next = { ...copy, label: { name, pinned, at: Math.max(this.parts.now(), copy.label.at + 1) } };
    this.parts.copies.absorb(next);
    return next;
  }

  private mergeSummary(summary: Summary): string | null {
    if (this.parts.store.deletions().some(({ remote }) => remote === summary.id)) return null;
    const copy = this.copy(summary.id, summary.metadata);
    if (copy === null && summary.head === null) return null; // it has no turns
    const pageId = summary.metadata[PAGE_ID];
    const conversation = copy ?? conversations.newConversation(pageId !== undefined && /^[\w-]{6,64}$/.test(pageId) ? pageId : summary.id, summary.createdAt);
    if (copy !== null && copy.remote !== null && summary.usedAt > copy.usedAt) this.turns.markStale(summary.id);
    this.parts.copies.absorb({ ...conversation, remote: summary.id, usedAt: Math.max(conversation.usedAt, summary.usedAt) });
    const current = this.parts.copies.get(conversation.id);
    if (current !== null) this.relabel(current, summary);
    this.mergeSettings(summary.id, summary.metadata);
    return conversation.id;
  }

  private mergeSettings(remote: string, metadata: Readonly<Record<string, unknown>>): void {
    const [copy, settings] = [this.copy(remote), fromMetadata(metadata)];
    if (copy === null || isSame(copy.settings, settings)) return;
    this.parts.copies.absorb({ ...copy, settings: { ...settings, at: Math.max(this.parts.now(), copy.settings.at + 1) } });
  }

  private copy(remote: string, metadata: Summary["metadata"] = {}): Conversation | null {
    const all = this.parts.copies.all();
    return all.find((each) => each.remote === remote) ?? all.find((each) => each.remote === null && each.id === metadata[PAGE_ID]) ?? null;
  }

  /** Removes copies of conversations that were deleted while there was no feed. A copy that is
      missing in the list is checked by a request. */
  private async dropDeleted(rows: readonly Summary[], hasMore: boolean): Promise<void> {
    const ids = new Set(rows.map(({ id }) => id));
    const oldest = hasMore ? (rows.at(-1)?.usedAt ?? 0) : -Infinity;
    for (const { id, remote, usedAt } of this.parts.copies.all()) {
      if (remote === null || ids.has(remote) || usedAt <= oldest) continue;
      if ((await this.parts.api.find(remote).catch(nullIfMissing)) === null) this.parts.copies.remove(id);
    }
  }

  private async keepsConversations(): Promise<boolean> {
    return (await this.parts.server()).conversations;
  }

  private async orWarn(act: () => Promise<void>): Promise<void> {
    try {
      await act();
    } catch (error) {
      this.warn(error);
    }
  }

  // A missing connection is shown elsewhere, and all requests are repeated when there is one.
  private warn(error: unknown): void {
    if (!(error instanceof ApiError && error.status === 0)) this.parts.warn(`the server's chats: ${errorText(error)}`);
  }
}

const LONGEST_NAME = 200;
/** The prefix of this page's metadata keys. */
const KEY_PREFIX = "page.";

function isUnnamed({ label }: Conversation, first: Turn): boolean {
  return label.name === "" || label.name === conversations.questionTitle(first.question);
}

/** null for status 404; throws every other error. */
function nullIfMissing(error: unknown): null {
  if (error instanceof ApiError && error.status === 404) return null;
  throw error;
}

function errorText(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
