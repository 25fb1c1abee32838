import { beforeEach, describe, expect, it, vi } from "vitest";
import { newConversation, newTurn, withTurn, type Conversation } from "../../src/core/conversation";
import { BrowserStore } from "../../src/edge/store";
import { Memory } from "../memory";

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
    expect([...memory.records.keys()]).toEqual(["tailrace.2.alice.conversation.old", "tailrace.lastUser"]);
  });

  it("keeps a draft for each conversation and for a new one, until it is sent or its conversation is deleted", () => {
    const alice = store("alice");
    alice.write(conversation("a"));
    alice.storeDraft("a", "half a");
    alice.storeDraft("t", "an edit of its turn");
    alice.storeDraft(null, "a new one");
    expect([store("alice").draft("a"), store("alice").draft(null), store("bob").draft("a")]).toEqual(["half a", "a new one", ""]);
    alice.storeDraft(null, "");
    alice.remove("a");
    expect([...memory.records.keys()]).toEqual(["tailrace.lastUser"]);
  });

  it("says when there is no room", () => {
    memory.full = true;
    expect(store(null).write(conversation("a"))).toBe(false);
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
    expect([...memory.records.keys()]).toEqual(["tailrace.lastUser"]);
  });
});

describe("what is written without a user", () => {
  const file = { fileId: "f", name: "a.png", kind: "image" as const, bytes: 9, expiresAt: 5 };

  it("is there after a reload, and belongs to the first user who signs in", () => {
    const first = store(null);
    expect(first.write(conversation("a"))).toBe(true);
    first.storeDraft(null, "half a question");
    first.storeDraftAttachments("a", [file]);
    const reloaded = store(null);
    expect([reloaded.all(), reloaded.draft(null), reloaded.draftAttachments("a"), reloaded.recipient]).toEqual([[conversation("a")], "half a question", [file], null]);
    reloaded.setOwner("alice");
    expect([reloaded.all(), reloaded.draft(null), reloaded.draftAttachments("a"), reloaded.recipient]).toEqual([[conversation("a")], "half a question", [file], "alice"]);
    expect(store("bob").all()).toEqual([]);
    expect([...memory.records.keys()].filter((key) => key.startsWith("tailrace.2.."))).toEqual([]);
  });

  it("after a sign-out belongs to the user who was signed in last, also if another one signs in next", () => {
    const one = store("alice");
    one.setOwner(null);
    expect([one.recipient, one.all()]).toEqual(["alice", []]);
    one.write(conversation("a"));
    one.storeDraft(null, "half a question");
    expect(store(null).all()).toEqual([conversation("a")]);
    const next = store("bob");
    expect([next.all(), next.draft(null)]).toEqual([[], ""]);
    next.setOwner(null);
    expect([next.recipient, next.all()]).toEqual(["bob", []]);
    next.setOwner("alice");
    expect([next.all(), next.draft(null)]).toEqual([[conversation("a")], "half a question"]);
  });

  it("in one tab stays theirs when another user signs in in another tab first", () => {
    store("alice");
    const [one, other] = [store(null), store(null)];
    other.setOwner("bob");
    one.write(conversation("a"));
    one.setOwner("bob");
    expect([one.all(), store("alice").all()]).toEqual([[], [conversation("a")]]);
  });

  it("stays in sight of a tab that has not noticed the sign-in in another one, unless it was deleted there", () => {
    let notify = (_event: object): void => undefined;
    vi.stubGlobal("window", { addEventListener: (_name: string, listener: (event: object) => void) => (notify = listener) });
    const [one, other] = [store(null), store(null)];
    const removed: string[] = [];
    one.onChange((id, now) => now === null && removed.push(id));
    for (const id of ["a", "b"]) other.write(conversation(id));
    other.remove("b");
    other.setOwner("alice");
    for (const id of ["a", "b"]) notify({ key: `tailrace.2..conversation.${id}`, newValue: null, storageArea: memory });
    vi.unstubAllGlobals();
    expect(removed).toEqual(["b"]);
  });

  it("is joined with what they have in the same place", () => {
    const one = store("alice");
    one.storeDraft(null, "before");
    one.write(conversation("a"));
    one.setOwner(null);
    one.storeDraft(null, "after");
    one.write(withTurn(conversation("a"), newTurn("u", "t", "another", null, "tab", 2)));
    one.setOwner("alice");
    expect(one.draft(null)).toBe("before\n\nafter");
    expect(one.read("a")?.turns.map(({ question }) => question)).toEqual(["question of a", "another"]);
  });

  it("stays where it is while there is no room to move it", () => {
    const one = store(null);
    one.write(conversation("a"));
    memory.full = "tailrace.2.alice.";
    one.setOwner("alice");
    expect(one.all()).toEqual([]);
    memory.full = false;
    expect(store("alice").all()).toEqual([conversation("a")]);
  });
});
