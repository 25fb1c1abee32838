/* Conversations in this browser's storage, one key each, shared by all tabs. localStorage because a write is whole or not
   at all, is there after a crash of the tab, and is announced to the other tabs. */

import { readConversation, type Conversation } from "../core/conversation";

const PREFIX = "tailrace.1.conversation.";

export interface Store {
  all(): Conversation[];
  read(id: string): Conversation | null;
  /** false: there is no room, or no storage at all. */
  write(conversation: Conversation): boolean;
  remove(id: string): void;
  /** Another tab wrote a conversation, or removed it (null). */
  onChange(heard: (id: string, conversation: Conversation | null) => void): void;
}

export class BrowserStore implements Store {
  constructor(private readonly storage: Storage | null) {}

  all(): Conversation[] {
    const found: Conversation[] = [];
    for (let place = 0; place < (this.storage?.length ?? 0); place += 1) {
      const key = this.storage?.key(place) ?? "";
      const conversation = key.startsWith(PREFIX) ? this.read(key.slice(PREFIX.length)) : null;
      if (conversation !== null) found.push(conversation);
    }
    return found;
  }

  read(id: string): Conversation | null {
    const raw = this.storage?.getItem(PREFIX + id) ?? null;
    return raw === null ? null : readConversation(raw);
  }

  write(conversation: Conversation): boolean {
    try {
      this.storage?.setItem(PREFIX + conversation.id, JSON.stringify(conversation));
      return this.storage !== null;
    } catch {
      return false;
    }
  }

  remove(id: string): void {
    this.storage?.removeItem(PREFIX + id);
  }

  onChange(heard: (id: string, conversation: Conversation | null) => void): void {
    window.addEventListener("storage", ({ key, newValue, storageArea }) => {
      if (storageArea !== this.storage || !key?.startsWith(PREFIX)) return;
      heard(key.slice(PREFIX.length), newValue === null ? null : readConversation(newValue));
    });
  }
}

/** Browsers that block storage throw on touching it. */
export function storageOf(kind: "localStorage" | "sessionStorage"): Storage | null {
  try {
    return window[kind];
  } catch {
    return null;
  }
}
