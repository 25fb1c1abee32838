/* The conversations of this tab. Each is the stored copy, joined with this tab's newer state. Other
   tabs write to the same store. */

import * as conversations from "./core/conversation";
import type { Conversation, Turn } from "./core/conversation";
import type { Store } from "./edge/store";

export interface ConversationCacheParts {
  store: Store;
  later(run: () => void, ms: number): () => void;
  /** This conversation changed or was dropped. */
  onChange(conversationId: string): void;
  onDrop(conversation: Conversation): void;
}

const WRITE_EVERY_MS = 300;

export class ConversationCache {
  private readonly conversations = new Map<string, Conversation>();
  /** The ids that the store has or had. If one is missing there, another tab removed the
      conversation. */
  private readonly storedIds = new Set<string>();
  private readonly dirty = new Set<string>();
  private isWritePlanned = false;
  private owner: string | null = null;
  private isFull = false;

  constructor(private readonly parts: ConversationCacheParts) {}

  /** Loads the conversations of a user (null: those without a user), and drops those of another
      one. Questions from before the sign-in stay if they belong to this user. */
  load(owner: string | null): void {
    this.flush();
    const { store } = this.parts;
    const isTheirs = this.owner === null && (store.recipient === null || store.recipient === owner);
    if (!isTheirs) for (const { id } of this.all()) this.drop(id);
    this.owner = owner;
    this.storedIds.clear();
    store.setOwner(owner);
    for (const { id } of this.all()) this.write(id);
    for (const conversation of store.all()) {
      this.storedIds.add(conversation.id);
      this.put(conversation);
    }
  }

  /** Calls `listener` when another tab wrote a conversation, or removed it (null). */
  listen(listener: (id: string, conversation: Conversation | null) => void): void {
    this.parts.store.onChange((id, conversation) => {
      if (conversation !== null) this.storedIds.add(id);
      listener(id, conversation);
    });
  }

  get(id: string): Conversation | null {
    return this.conversations.get(id) ?? null;
  }

  all(): Conversation[] {
    return [...this.conversations.values()];
  }

  turn(conversationId: string, turnId: string): Turn | null {
    return this.get(conversationId)?.turns.find((turn) => turn.id === turnId) ?? null;
  }

  put(conversation: Conversation): void {
    this.conversations.set(conversation.id, conversation);
    this.parts.onChange(conversation.id);
  }

  change(conversationId: string, turn: Turn): void {
    const conversation = this.get(conversationId);
    if (conversation !== null) this.put(conversations.withTurn(conversation, turn));
  }

  /** Joins another copy of a conversation with this tab's, and returns the joined one. */
  join(theirs: Conversation): Conversation {
    const mine = this.get(theirs.id);
    const conversation = mine === null ? theirs : conversations.join(mine, theirs);
    this.put(conversation);
    if (conversations.knowsMore(conversation, theirs)) this.writeLater(theirs.id);
    return conversation;
  }

  remove(id: string): Conversation | null {
    const conversation = this.get(id);
    this.drop(id);
    this.parts.store.remove(id);
    return conversation;
  }

  /** Removes it from this tab. The store may still have it. */
  drop(id: string): void {
    const conversation = this.get(id);
    this.conversations.delete(id);
    this.storedIds.delete(id);
    this.dirty.delete(id);
    if (conversation !== null) this.parts.onDrop(conversation);
    this.parts.onChange(id);
  }

  /** Whether a write failed since the last call. */
  popFull(): boolean {
    const wasFull = this.isFull;
    this.isFull = false;
    return wasFull;
  }

  writeLater(id: string): void {
    this.dirty.add(id);
    if (this.isWritePlanned) return;
    this.isWritePlanned = true;
    this.parts.later(() => {
      this.isWritePlanned = false;
      this.flush();
    }, WRITE_EVERY_MS);
  }

  /** Writes pending changes. */
  flush(): void {
    for (const id of [...this.dirty]) this.write(id);
  }

  // No await between read and write, so a write of another tab just before is not lost.
  write(id: string): void {
    this.dirty.delete(id);
    const mine = this.get(id);
    if (mine === null) return;
    const theirs = this.parts.store.read(id);
    if (theirs === null && this.storedIds.has(id)) {
      this.drop(id);
      return;
    }
    const conversation = theirs === null ? mine : conversations.join(mine, theirs);
    const isWritten = this.parts.store.write(conversation) || (this.makeRoom(id) && this.parts.store.write(conversation));
    if (isWritten) this.storedIds.add(id);
    else if (!this.isFull) {
      this.isFull = true;
      this.parts.onChange(id);
    }
  }

  /** Removes turns that the server has from the store: those of the half that was used least
      recently. */
  private makeRoom(exceptId: string): boolean {
    const candidates = this.all()
      .filter((each) => each.id !== exceptId && each.turns.length > 0 && conversations.isOnServer(each))
      .sort((a, b) => conversations.lastUsed(a) - conversations.lastUsed(b));
    const victims = candidates.slice(0, Math.ceil(candidates.length / 2));
    for (const each of victims) this.parts.store.write({ ...each, turns: [], chosen: {} });
    return victims.length > 0;
  }
}
