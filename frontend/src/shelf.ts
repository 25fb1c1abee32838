/* The conversations that this tab holds. Each is what the store has of it, joined with what this tab knows more of: other tabs
   write to the same store. */

import * as conversations from "./core/conversation";
import type { Conversation, Turn } from "./core/conversation";
import type { Store } from "./edge/store";

export interface ShelfParts {
  store: Store;
  later(run: () => void, ms: number): () => void;
  /** Something of this conversation changed, or it is gone. */
  changed(conversationId: string): void;
  /** It is not held any more. */
  dropped(conversation: Conversation): void;
}

const WRITE_EVERY_MS = 300;

export class Shelf {
  private readonly held = new Map<string, Conversation>();
  /** Conversations that the store has or had: one that vanished from it was removed by another tab. */
  private readonly stored = new Set<string>();
  private readonly unwritten = new Set<string>();
  private writeSoon = false;
  private owner: string | null = null;
  private isFull = false;

  constructor(private readonly parts: ShelfParts) {}

  /** What is kept for a user (null: no user). What is held of another one goes. */
  load(owner: string | null): void {
    this.flush();
    // What was asked before it was known who asks is theirs.
    const unowned = this.owner === null ? this.all() : [];
    if (unowned.length === 0) for (const id of [...this.held.keys()]) this.drop(id);
    this.owner = owner;
    this.parts.store.use(owner);
    for (const { id } of unowned) this.write(id);
    for (const conversation of this.parts.store.all()) {
      this.stored.add(conversation.id);
      this.put(conversation);
    }
  }

  /** Calls `heard` when another tab wrote a conversation, or removed it (null). */
  listen(heard: (id: string, conversation: Conversation | null) => void): void {
    this.parts.store.onChange((id, conversation) => {
      if (conversation !== null) this.stored.add(id);
      heard(id, conversation);
    });
  }

  get(id: string): Conversation | null {
    return this.held.get(id) ?? null;
  }

  all(): Conversation[] {
    return [...this.held.values()];
  }

  turn(conversationId: string, turnId: string): Turn | null {
    return this.get(conversationId)?.turns.find((turn) => turn.id === turnId) ?? null;
  }

  put(conversation: Conversation): void {
    this.held.set(conversation.id, conversation);
    this.parts.changed(conversation.id);
  }

  change(conversationId: string, turn: Turn): void {
    const conversation = this.get(conversationId);
    if (conversation !== null) this.put(conversations.withTurn(conversation, turn));
  }

  /** Holds what somebody else knows of a conversation, joined with what is known here. Gives that. */
  join(theirs: Conversation): Conversation {
    const mine = this.get(theirs.id);
    const joined = mine === null ? theirs : conversations.join(mine, theirs);
    this.put(joined);
    if (conversations.knowsMore(joined, theirs)) this.writeLater(theirs.id);
    return joined;
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
    this.held.delete(id);
    this.stored.delete(id);
    this.unwritten.delete(id);
    if (conversation !== null) this.parts.dropped(conversation);
    this.parts.changed(id);
  }

  /** Whether something could not be kept since this was asked last. */
  takeFull(): boolean {
    const found = this.isFull;
    this.isFull = false;
    return found;
  }

  writeLater(id: string): void {
    this.unwritten.add(id);
    if (this.writeSoon) return;
    this.writeSoon = true;
    this.parts.later(() => {
      this.writeSoon = false;
      this.flush();
    }, WRITE_EVERY_MS);
  }

  /** Writes what is not yet written. */
  flush(): void {
    for (const id of [...this.unwritten]) this.write(id);
  }

  // No await between read and write: a write of another tab just before is not lost.
  write(id: string): void {
    this.unwritten.delete(id);
    const mine = this.get(id);
    if (mine === null) return;
    const theirs = this.parts.store.read(id);
    if (theirs === null && this.stored.has(id)) {
      this.drop(id);
      return;
    }
    const joined = theirs === null ? mine : conversations.join(mine, theirs);
    const good = this.parts.store.write(joined) || (this.makeRoom(id) && this.parts.store.write(joined));
    if (good) this.stored.add(id);
    else if (!this.isFull) {
      this.isFull = true;
      this.parts.changed(id);
    }
  }

  /** Takes turns out of the store that the server has, of conversations that were not used for longest. */
  private makeRoom(but: string): boolean {
    const spare = this.all()
      .filter((each) => each.id !== but && each.turns.length > 0 && conversations.isOnServer(each))
      .sort((a, b) => conversations.lastUsed(a) - conversations.lastUsed(b));
    const given = spare.slice(0, Math.ceil(spare.length / 2));
    for (const each of given) this.parts.store.write({ ...each, turns: [], chosen: {} });
    return given.length > 0;
  }
}
