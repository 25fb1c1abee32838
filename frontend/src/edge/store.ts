/* Conversations in this browser's storage. Each has a key, which begins with its user, so another
   user of this browser sees none of them. All tabs share them. It is localStorage because a write
   is atomic, survives a crash of the tab, and is announced to the other tabs.

   What is written without a user belongs to the user who was signed in last in this browser, or
   else to the next one who signs in. The next sign-in moves it to that user, also if another
   one signs in. */

import { readAttachments, type Attachment } from "../core/attachments";
import { join, type Conversation } from "../core/conversation";
import { readConversation } from "../core/storedConversation";

/** The prefix of former versions of the page. They stored conversations without a user; those go to
    the first user who signs in. */
const FORMER_PREFIX = "tailrace.1.";
const PREFIX = "tailrace.2.";
/** The user who was signed in last. */
const LAST_USER = "tailrace.lastUser";
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
  /** Selects the user; null: none. What was written without a user moves to its recipient. */
  setOwner(owner: string | null): void;
  /** The user to whom the selected data belongs; null: the next user who signs in. */
  readonly recipient: string | null;
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
  private owner: string | null = null;
  private prefix = prefixOf(null);
  recipient: string | null;

  constructor(private readonly storage: Storage | null) {
    this.recipient = this.lastUser();
  }

  setOwner(owner: string | null): void {
    const heir = this.owner === null ? this.recipient : this.lastUser();
    this.owner = owner;
    this.prefix = prefixOf(owner);
    if (owner === null) {
      this.recipient = this.lastUser();
      return;
    }
    this.recipient = owner;
    this.moveAll(FORMER_PREFIX, this.prefix);
    this.moveAll(prefixOf(null), prefixOf(heir ?? owner));
    // Removed first: if the storage is full, no former user must get what is typed next.
    this.storage?.removeItem(LAST_USER);
    this.set(LAST_USER, owner);
  }

  all(): Conversation[] {
    const prefix = this.prefix + CONVERSATION;
    return this.keys(prefix).flatMap((key) => this.read(key.slice(prefix.length)) ?? []);
  }

  /** The text in the composer of a conversation (null: of a new one), or of an edited turn. */
  draft(id: string | null): string {
    return this.storage?.getItem(this.prefix + DRAFT + (id ?? "")) ?? "";
  }

  storeDraft(id: string | null, words: string): void {
    this.set(this.prefix + DRAFT + (id ?? ""), words);
  }

  /** The uploads for the question in the composer. */
  draftAttachments(id: string | null): readonly Attachment[] {
    const raw = this.storage?.getItem(this.prefix + ATTACHMENTS + (id ?? "")) ?? null;
    try {
      return raw === null ? [] : readAttachments(JSON.parse(raw));
    } catch {
      return [];
    }
  }

  storeDraftAttachments(id: string | null, attachments: readonly Attachment[]): void {
    this.set(this.prefix + ATTACHMENTS + (id ?? ""), attachments.length === 0 ? "" : JSON.stringify(attachments));
  }

  /** Empty: the key is removed. false: the storage is full or missing. */
  private set(key: string, value: string): boolean {
    try {
      if (value === "") this.storage?.removeItem(key);
      else this.storage?.setItem(key, value);
      return this.storage !== null;
    } catch {
      return false;
    }
  }

  read(id: string): Conversation | null {
    const raw = this.storage?.getItem(this.prefix + CONVERSATION + id) ?? null;
    return raw === null ? null : readConversation(raw);
  }

  write(conversation: Conversation): boolean {
    return this.set(this.prefix + CONVERSATION + conversation.id, JSON.stringify(conversation));
  }

  remove(id: string): void {
    for (const turn of this.read(id)?.turns ?? []) this.storeDraft(turn.id, "");
    this.storage?.removeItem(this.prefix + CONVERSATION + id);
    this.storeDraft(id, "");
    this.storeDraftAttachments(id, []);
  }

  deletions(): Deletion[] {
    const prefix = this.prefix + DELETIONS;
    return this.keys(prefix).map((key) => ({ remote: key.slice(prefix.length), at: Number(this.storage?.getItem(key)) || 0 }));
  }

  storeDeletion({ remote, at }: Deletion): void {
    this.storage?.setItem(this.prefix + DELETIONS + remote, String(at));
  }

  forgetDeletion(remote: string): void {
    this.storage?.removeItem(this.prefix + DELETIONS + remote);
  }

  onChange(listener: (id: string, conversation: Conversation | null) => void): void {
    window.addEventListener("storage", ({ key, newValue, storageArea }) => {
      const prefix = this.prefix + CONVERSATION;
      if (storageArea !== this.storage || !key?.startsWith(prefix)) return;
      const id = key.slice(prefix.length);
      // Another tab signed in. This tab has not noticed it yet, and goes on showing the conversation.
      if (newValue === null && this.owner === null && this.keys(PREFIX).some((each) => each.endsWith(`.${CONVERSATION}${id}`))) return;
      listener(id, newValue === null ? null : readConversation(newValue));
    });
  }

  private lastUser(): string | null {
    return this.storage?.getItem(LAST_USER) ?? null;
  }

  private keys(prefix: string): string[] {
    const keys: string[] = [];
    for (let place = 0; place < (this.storage?.length ?? 0); place += 1) {
      const key = this.storage?.key(place) ?? "";
      if (key.startsWith(prefix)) keys.push(key);
    }
    return keys;
  }

  private moveAll(from: string, to: string): void {
    for (const key of this.keys(from)) this.move(from, to, key.slice(from.length));
  }

  private move(from: string, to: string, name: string): void {
    const value = this.storage?.getItem(from + name) ?? "";
    const next = joinValues(name, this.storage?.getItem(to + name) ?? null, value);
    const isWritten = this.set(to + name, next);
    this.storage?.removeItem(from + name);
    // The storage may not have had space for both.
    if (!isWritten && !this.set(to + name, next)) this.set(from + name, value);
  }
}

function prefixOf(owner: string | null): string {
  return `${PREFIX}${encodeURIComponent(owner ?? "").replace(/\./g, "%2E")}.`;
}

/** The value of a key that moves. `former`: the value at its new place; null: none. */
function joinValues(name: string, former: string | null, value: string): string {
  if (former === null) return value;
  if (name.startsWith(DRAFT)) return value.startsWith(former) ? value : `${former}\n\n${value}`;
  const [theirs, mine] = [readConversation(former), readConversation(value)];
  return theirs === null || mine === null ? value : JSON.stringify(join(theirs, mine));
}

/** null: the browser blocks the storage, and any access throws. */
export function storageOf(kind: "localStorage" | "sessionStorage"): Storage | null {
  try {
    return window[kind];
  } catch {
    return null;
  }
}
