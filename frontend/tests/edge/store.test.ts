import { beforeEach, describe, expect, it } from "vitest";
import { newConversation, newTurn, withTurn, type Conversation } from "../../src/core/conversation";
import { BrowserStore } from "../../src/edge/store";

/** The used part of a browser's storage. */
class Memory {
  readonly records = new Map<string, string>();
  full = false;

  get length(): number {
    return this.records.size;
  }

  key(place: number): string | null {
    return [...this.records.keys()][place] ?? null;
  }

  getItem(key: string): string | null {
    return this.records.get(key) ?? null;
  }

  setItem(key: string, value: string): void {
    if (this.full) throw new Error("no room");
    this.records.set(key, value);
  }

  removeItem(key: string): void {
    this.records.delete(key);
  }
}

let memory: Memory;

function store(owner: string | null): BrowserStore {
  const browserStore = new BrowserStore(memory as unknown as Storage);
  browserStore.setOwner(owner);
  return browserStore;
}

function conversation(id: string): Conversation {
  return withTurn(newConversation(id, 1), newTurn("t", null, `question of ${id}`, null, "tab", 1));
}

beforeEach(() => {
  memory = new Memory();
});

describe("the store of a browser", () => {
  it("shows each user their own conversations, and none without a user", () => {
    const alice = store("alice");
    alice.write(conversation("a"));
    store("al").write(conversation("b"));
    expect(alice.all()).toEqual([conversation("a")]);
    expect(store("bob").all()).toEqual([]);
    expect(store("bob").read("a")).toBeNull();
    expect(store(null).all()).toEqual([]);
    alice.setOwner("al");
    expect(alice.all()).toEqual([conversation("b")]);
  });

  it("takes names of any characters apart", () => {
    store("a.conversation.x").write(conversation("1"));
    store("a").write(conversation("2"));
    expect(store("a").all().map(({ id }) => id)).toEqual(["2"]);
  });

  it("gives what an older version of the page kept without a user to the first one", () => {
    memory.setItem("tailrace.1.conversation.old", JSON.stringify(conversation("old")));
    expect(store(null).all()).toEqual([]);
    expect(store("alice").all()).toEqual([conversation("old")]);
    expect(store("bob").all()).toEqual([]);
    expect([...memory.records.keys()]).toEqual(["tailrace.2.alice.conversation.old"]);
  });

  it("keeps a draft for each conversation and for a new one, until it is sent or its conversation is deleted", () => {
    const alice = store("alice");
    alice.storeDraft("a", "half a");
    alice.storeDraft(null, "a new one");
    expect([store("alice").draft("a"), store("alice").draft(null), store("bob").draft("a")]).toEqual(["half a", "a new one", ""]);
    alice.storeDraft(null, "");
    alice.remove("a");
    expect(memory.length).toBe(0);
  });

  it("says when there is no room, and keeps nothing before it is known whose it is", () => {
    expect(store(null).write(conversation("a"))).toBe(true);
    expect(memory.length).toBe(0);
    memory.full = true;
    expect(store("alice").write(conversation("a"))).toBe(false);
    store("alice").storeDraft("a", "words");
  });

  it("keeps what was uploaded for a draft with its chat, and no bytes of it", () => {
    const file = { fileId: "f", name: "a.png", kind: "image" as const, bytes: 9, expiresAt: 5 };
    store("alice").storeDraftAttachments("c", [file]);
    expect([store("alice").draftAttachments("c"), store("alice").draftAttachments(null), store("bob").draftAttachments("c")]).toEqual([[file], [], []]);
    store("alice").remove("c");
    expect(store("alice").draftAttachments("c")).toEqual([]);
    memory.setItem("tailrace.2.alice.attached.c", "{damaged");
    expect(store("alice").draftAttachments("c")).toEqual([]);
    store("alice").storeDraftAttachments("c", []);
    expect([...memory.records.keys()]).toEqual([]);
  });
});
