/* Conversations in this browser's storage. Each has a key, which begins with its user, so another
   user of this browser sees none of them. All tabs share them. It is localStorage because a write
   is atomic, survives a crash of the tab, and is announced to the other tabs. */

import { readAttachments, type Attachment } from "../core/attachments";
import type { Conversation } from "../core/conversation";
import { readConversation } from "../core/storedConversation";

/** The prefix of former versions of the page, without a user. */
const FORMER_PREFIX = "tailrace.1.conversation.";
const DRAFT = "draft.";
const ATTACHMENTS = "attached.";
const CONVERSATION = "conversation.";
const DELETIONS = "removed.";

/** A conversation that the reader deleted and that still exists on the server. */
export interface Deletion {
  /** Its id on the server. */
  readonly remote: string;
  /** In ms. */
  readonly at: number;
}

export interface Store {
  /** Selects the user; null: no user, and the store is empty. */
  setOwner(owner: string | null): void;
  all(): Conversation[];
  read(id: string): Conversation | null;
  /** false: the storage is full or missing. */
  write(conversation: Conversation): boolean;
  remove(id: string): void;
  deletions(): Deletion[];
  storeDeletion(deletion: Deletion): void;
  forgetDeletion(remote: string): void;
  /** Calls `listener` when another tab wrote a conversation, or removed it (null). */
  onChange(listener: (id: string, conversation: Conversation | null) => void): void;
}

export class BrowserStore implements Store {
  private prefix: string | null = null;

  constructor(private readonly storage: Storage | null) {}

  setOwner(owner: string | null): void {
    this.prefix = owner === null ? null : `tailrace.2.${encodeURIComponent(owner).replace(/\./g, "%2E")}.`;
    for (const key of this.keys(FORMER_PREFIX)) this.adopt(key);
  }

  all(): Conversation[] {
    const prefix = this.conversation("");
    return prefix === null ? [] : this.keys(prefix).flatMap((key) => this.read(key.slice(prefix.length)) ?? []);
  }

  /** The text in the composer of a conversation (null: of a new one). */
  draft(id: string | null): string {
    return this.prefix === null ? "" : (this.storage?.getItem(this.prefix + DRAFT + (id ?? "")) ?? "");
  }

  storeDraft(id: string | null, words: string): void {
    if (this.prefix !== null) this.setOrRemove(this.prefix + DRAFT + (id ?? ""), words);
  }

  /** The uploads for the question in the composer. */
  draftAttachments(id: string | null): readonly Attachment[] {
    const raw = this.prefix === null ? null : (this.storage?.getItem(this.prefix + ATTACHMENTS + (id ?? "")) ?? null);
    try {
      return raw === null ? [] : readAttachments(JSON.parse(raw));
    } catch {
      return [];
    }
  }

  storeDraftAttachments(id: string | null, attachments: readonly Attachment[]): void {
    if (this.prefix !== null) this.setOrRemove(this.prefix + ATTACHMENTS + (id ?? ""), attachments.length === 0 ? "" : JSON.stringify(attachments));
  }

  private setOrRemove(key: string, words: string): void {
    try {
      if (words === "") this.storage?.removeItem(key);
      else this.storage?.setItem(key, words);
    } catch {
      // The storage is full: the draft is lost at the next reload.
    }
  }

  read(id: string): Conversation | null {
    const key = this.conversation(id);
    const raw = key === null ? null : (this.storage?.getItem(key) ?? null);
    return raw === null ? null : readConversation(raw);
  }

  write(conversation: Conversation): boolean {
    const key = this.conversation(conversation.id);
    if (key === null) return true; // the user is not known yet
    try {
      this.storage?.setItem(key, JSON.stringify(conversation));
      return this.storage !== null;
    } catch {
      return false;
    }
  }

  remove(id: string): void {
    const key = this.conversation(id);
    if (key !== null) this.storage?.removeItem(key);
    this.storeDraft(id, "");
    this.storeDraftAttachments(id, []);
  }

  deletions(): Deletion[] {
    if (this.prefix === null) return [];
    const prefix = this.prefix + DELETIONS;
    return this.keys(prefix).map((key) => ({ remote: key.slice(prefix.length), at: Number(this.storage?.getItem(key)) || 0 }));
  }

  storeDeletion({ remote, at }: Deletion): void {
    if (this.prefix !== null) this.storage?.setItem(this.prefix + DELETIONS + remote, String(at));
  }

  forgetDeletion(remote: string): void {
    if (this.prefix !== null) this.storage?.removeItem(this.prefix + DELETIONS + remote);
  }

  onChange(listener: (id: string, conversation: Conversation | null) => void): void {
    window.addEventListener("storage", ({ key, newValue, storageArea }) => {
      const prefix = this.conversation("");
      if (storageArea !== this.storage || prefix === null || !key?.startsWith(prefix)) return;
      listener(key.slice(prefix.length), newValue === null ? null : readConversation(newValue));
    });
  }

  private conversation(id: string): string | null {
    return this.prefix === null ? null : this.prefix + CONVERSATION + id;
  }

  private keys(prefix: string): string[] {
    const keys: string[] = [];
    for (let place = 0; place < (this.storage?.length ?? 0); place += 1) {
      const key = this.storage?.key(place) ?? "";
      if (key.startsWith(prefix)) keys.push(key);
    }
    return keys;
  }

  // Conversations of former versions go to the first user who signs in.
  private adopt(former: string): void {
    const key = this.conversation(former.slice(FORMER_PREFIX.length));
    const raw = this.storage?.getItem(former) ?? null;
    if (key === null || raw === null) return;
    this.storage?.removeItem(former); // first, because the storage may not have space for both
    try {
      this.storage?.setItem(key, raw);
    } catch {
      this.storage?.setItem(former, raw);
    }
  }
}

/** null: the browser blocks the storage, and any access throws. */
export function storageOf(kind: "localStorage" | "sessionStorage"): Storage | null {
  try {
    return window[kind];
  } catch {
    return null;
  }
}
