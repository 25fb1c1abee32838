/* The conversations that this tab holds. Each is what the store has of it, joined with what this tab knows more of: other tabs
   write to the same store. */

import * as conversations from "./core/conversation";
import type { Conversation, Turn } from "./core/conversation";
import type { Store } from "./edge/store";

export interface ConversationCacheParts {
  store: Store;
  later(run: () => void, ms: number): () => void;
  /** Something of this conversation changed, or it is gone. */
  onChange(conversationId: string): void;
  /** It is not held any more. */
  onDrop(conversation: Conversation): void;
}

const WRITE_EVERY_MS = 300;

export class ConversationCache {
  private readonly conversations = new Map<string, Conversation>();
  /** Conversations that the store has or had: one that vanished from it was removed by another tab. */
  private readonly storedIds = new Set<string>();
  private readonly dirty = new Set<string>();
  private isWritePlanned = false;
  private owner: string | null = null;
  private isFull = false;

  constructor(private readonly parts: ConversationCacheParts) {}

  /** What is kept for a user (null: no user). What is held of another one goes. */
  load(owner: string | null): void {
    this.flush();
    // What was asked before it was known who asks is theirs.
    const unowned = this.owner === null ? this.all() : [];
    if (unowned.length === 0) for (const id of [...this.conversations.keys()]) this.drop(id);
    this.owner = owner;
    this.parts.store.setOwner(owner);
    for (const { id } of unowned) this.write(id);
    for (const conversation of this.parts.store.all()) {
      this.storedIds.add(conversation.id);
      this.put(conversation);
    }
  }

  /** Calls `heard` when another tab wrote a conversation, or removed it (null). */
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

  /** Holds what somebody else knows of a conversation, joined with what is known here. Gives that. */
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

  /** Holds it no longer. The store may have it. */
  drop(id: string): void {
    const conversation = this.get(id);
    this.conversations.delete(id);
    this.storedIds.delete(id);
    this.dirty.delete(id);
    if (conversation !== null) this.parts.onDrop(conversation);
    this.parts.onChange(id);
  }

  /** Whether something could not be kept since this was asked last. */
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

  /** Writes what is not yet written. */
  flush(): void {
    for (const id of [...this.dirty]) this.write(id);
  }

  // No await between read and write: a write of another tab just before is not lost.
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

  /** Takes turns out of the store that the server has, of conversations that were not used for longest. */
  private makeRoom(exceptId: string): boolean {
    const candidates = this.all()
      .filter((each) => each.id !== exceptId && each.turns.length > 0 && conversations.isOnServer(each))
      .sort((a, b) => conversations.lastUsed(a) - conversations.lastUsed(b));
    const victims = candidates.slice(0, Math.ceil(candidates.length / 2));
    for (const each of victims) this.parts.store.write({ ...each, turns: [], chosen: {} });
    return victims.length > 0;
  }
}
