import { beforeEach, describe, expect, it } from "vitest";
import { chain, visibleTurns, title, type Conversation, type Turn } from "../src/core/conversation";
import { messageText } from "../src/core/reading";
import { ApiError } from "../src/edge/api";
import { DEFAULT_SETTINGS } from "../src/core/settings";
import { PAGE_ID } from "../src/edge/conversations";
import { UNDO_MS } from "../src/library";
import { Clock, flushPromises, SharedStorage, type Tab } from "./world";
import { ConversationServer } from "./conversationServer";

const PIECES = ["One ", "two ", "three."];
const WHOLE = "One two three.";

let clock: Clock;
let server: ConversationServer;

beforeEach(() => {
  clock = new Clock();
  server = new ConversationServer(clock);
});

async function ask(tab: Tab, question = "Count.", id: string | null = null): Promise<string> {
  const conversationId = tab.controller.ask(id, question, null);
  tab.library?.open(conversationId);
  await clock.pass(10);
  return conversationId;
}

async function askAndFinish(tab: Tab, question = "Count.", id: string | null = null): Promise<string> {
  const conversationId = await ask(tab, question, id);
  server.stream(server.last, PIECES);
  await clock.pass(10);
  return conversationId;
}

function first(tab: Tab): Conversation {
  return tab.controller.list()[0] as Conversation;
}

function path(tab: Tab): string[] {
  return visibleTurns(first(tab)).flatMap((turn: Turn) => [turn.question, messageText(chain(turn))]);
}

async function open(tab: Tab): Promise<void> {
  tab.library?.open(first(tab).id);
  await clock.pass(10);
}

async function device(name: string, storage?: SharedStorage): Promise<Tab> {
  const tab = server.device(name, storage);
  await clock.pass(10);
  return tab;
}

describe("a chat on two devices", () => {
  it("is made with its first question, once, and shown by the other device while it runs", async () => {
    const [one, two] = [await device("a"), await device("b")];
    const id = await ask(one);
    expect(server.asks[0]).toMatchObject({ conversation: `conv_${id}`, previousResponseId: null });
    expect(first(two).id).toBe(id);
    expect(title(first(two))).toBe("Count.");
    await open(two);
    expect(path(two)).toEqual(["Count.", ""]);
    server.stream(server.last, PIECES, 7);
    expect(path(two)).toEqual(["Count.", "One two "]);
    server.stream(server.last, PIECES);
    expect(path(two)).toEqual(["Count.", WHOLE]);
    expect(visibleTurns(first(two))[0]?.id).toBe(visibleTurns(first(one))[0]?.id);
    expect([...one.warnings, ...two.warnings]).toEqual([]);
  });

  it("goes on at the other device, behind the answer before", async () => {
    const [one, two] = [await device("a"), await device("b")];
    const id = await askAndFinish(one);
    await open(two);
    await askAndFinish(two, "And then?", id);
    expect(server.asks[1]).toMatchObject({ conversation: `conv_${id}`, previousResponseId: "resp_1", input: "And then?" });
    expect(path(one)).toEqual(["Count.", WHOLE, "And then?", WHOLE]);
    expect(path(two)).toEqual(path(one));
  });

  it("follows a failed answer, which the server passes over", async () => {
    const one = await device("a");
    const id = await ask(one);
    server.stream(server.last, [], Infinity, { type: "response.failed", error: { code: "expired", message: "no" } });
    await ask(one, "Again?", id);
    expect(server.asks[1]).toMatchObject({ previousResponseId: "resp_1" });
  });

  it("shows the version that was chosen at the other one, and both", async () => {
    const [one, two] = [await device("a"), await device("b")];
    const id = await askAndFinish(one);
    await open(two);
    const [before] = visibleTurns(first(one));
    one.controller.edit(id, before?.id ?? "", "Count down.");
    await clock.pass(10);
    server.stream(server.last, ["Three."]);
    expect(server.asks[1]).toMatchObject({ conversation: `conv_${id}`, previousResponseId: null });
    await clock.pass(10);
    expect(path(two)).toEqual(["Count down.", "Three."]);
    expect(first(two).turns).toHaveLength(2);
    two.controller.choose(id, before?.id ?? "");
    two.library?.publishHead(id);
    await clock.pass(10);
    expect(path(one)).toEqual(["Count.", WHOLE]);
  });

  it("shows an answer that was continued as one", async () => {
    const [one, two] = [await device("a"), await device("b")];
    const id = await ask(one);
    server.stream(server.last, ["Half "], Infinity, { type: "response.incomplete", reason: "max_output_tokens", continues: true });
    one.controller.more(id, visibleTurns(first(one))[0]?.id ?? "");
    await clock.pass(10);
    expect(server.asks[1]).toMatchObject({ input: [], previousResponseId: "resp_1" });
    server.stream(server.last, ["and half."]);
    await open(two);
    expect(path(two)).toEqual(["Count.", "Half and half."]);
    expect(first(two).turns).toEqual(first(one).turns.map((turn) => ({ ...turn, tab: expect.any(String), answer: expect.anything(), before: expect.anything(), sentAt: expect.any(Number) })));
  });

  it("is read whole by a device that comes later, and its versions too", async () => {
    const one = await device("a");
    const id = await askAndFinish(one);
    for (const question of ["Two?", "Three?", "Four?"]) await askAndFinish(one, question, id);
    one.controller.retry(id, visibleTurns(first(one))[1]?.id ?? "");
    await clock.pass(10);
    server.stream(server.last, ["Other."]);
    const two = await device("b");
    expect(first(two).turns).toEqual([]);
    expect(two.library?.state(first(two))).toBe("coming");
    await open(two);
    expect(path(two)).toEqual(path(one));
    expect(path(two)).toEqual(["Count.", WHOLE, "Two?", "Other."]);
    expect(first(two).turns.map((turn) => turn.id).sort()).toEqual(first(one).turns.map((turn) => turn.id).sort());
  });

  it("waits for a turn whose request is not yet in the log", async () => {
    const [one, two] = [await device("a"), await device("b")];
    const id = await askAndFinish(one);
    await open(two);
    server.pendingWrites.add("resp_2");
    await ask(one, "More?", id);
    expect(path(two)).toEqual(["Count.", WHOLE]);
    server.pendingWrites.clear();
    await clock.pass(400);
    expect(path(two)).toEqual(["Count.", WHOLE, "More?", ""]);
  });

  it("shows another version of a question when that is in the log, too", async () => {
    const [one, two] = [await device("a"), await device("b")];
    const id = await askAndFinish(one);
    await open(two);
    const edited = async (question: string): Promise<void> => {
      one.controller.edit(id, visibleTurns(first(one))[0]?.id ?? "", question);
      await clock.pass(10);
    };
    const before = visibleTurns(first(one))[0]?.id ?? "";
    await edited("Count down.");
    server.stream(server.last, ["Three."]);
    one.controller.choose(id, before);
    one.library?.publishHead(id);
    await clock.pass(10);
    server.pendingWrites.add("resp_3");
    await edited("Count up.");
    expect(path(two)).toEqual(["Count.", WHOLE]);
    server.pendingWrites.clear();
    await clock.pass(400);
    expect(path(two)).toEqual(["Count up.", ""]);
  });

  it("keeps the time at which it was asked when the feed tells of that late", async () => {
    const one = await device("a");
    await askAndFinish(one);
    const { usedAt, remote } = first(one);
    await clock.pass(400);
    one.library?.feed([{ kind: "turn", position: "9", id: remote ?? "", response: "resp_1", parent: null }]);
    expect(first(one).usedAt).toBe(usedAt);
  });

  it("is told what it missed while its connection was cut", async () => {
    const [one, two] = [await device("a"), await device("b")];
    const id = await askAndFinish(one);
    await open(two);
    server.cutOff(two);
    await askAndFinish(one, "More?", id);
    expect(path(two)).toEqual(["Count.", WHOLE]);
    two.connect();
    await clock.pass(10);
    expect(path(two)).toEqual(["Count.", WHOLE, "More?", WHOLE]);
  });

  it("is listed with its page of many, and the others when they are asked for", async () => {
    const one = await device("a");
    for (const question of ["1", "2", "3", "4", "5"]) {
      await askAndFinish(one, question);
      await clock.pass(2000);
    }
    const two = await device("b");
    expect(two.controller.list()).toHaveLength(3);
    expect(two.library?.hasMore).toBe(true);
    await two.library?.more();
    expect(two.controller.list()).toHaveLength(5);
    expect(two.library?.hasMore).toBe(false);
  });
});

describe("a list", () => {
  it("is read where the feed is refused", async () => {
    const one = await device("a");
    await askAndFinish(one);
    server.refusesFeeds = true;
    const two = await device("b");
    expect(two.controller.list()).toEqual([]);
    await clock.pass(6000);
    expect(two.controller.list()).toHaveLength(1);
  });

  it("is not asked for in the name of a user who left meanwhile", async () => {
    const one = await device("a");
    await askAndFinish(one);
    server.refusesFeeds = true;
    const two = await device("b");
    two.library?.reset();
    await clock.pass(6000);
    expect(two.controller.list()).toEqual([]);
  });

  it("loses what was deleted before it was ever opened here", async () => {
    const storage = new SharedStorage();
    const [one, two] = [await device("a"), await device("b", storage)];
    const id = await askAndFinish(one);
    await clock.pass(400); // it is written
    two.kill(storage);
    server.cutOff(two);
    one.library?.remove(id);
    await clock.pass(UNDO_MS + 100);
    const three = await device("c", storage);
    expect(three.controller.list()).toEqual([]);
  });
});

describe("names and pins", () => {
  it("has a title of the model after the first turn, on both devices", async () => {
    const [one, two] = [await device("a"), await device("b")];
    server.title = '"Counting to three."\n';
    const id = await askAndFinish(one);
    expect(title(first(one))).toBe("Counting to three");
    expect(title(first(two))).toBe("Counting to three");
    await askAndFinish(one, "More?", id);
    expect(server.titles).toEqual(["Count."]);
  });

  it("keeps the question as its title where the model has none", async () => {
    const one = await device("a");
    server.title = "\n";
    await askAndFinish(one);
    expect(title(first(one))).toBe("Count.");
  });

  it("asks for no title where the server wants none", async () => {
    server.titled = false;
    const one = await device("a");
    await askAndFinish(one);
    expect(server.titles).toEqual([]);
  });

  it("is renamed and pinned on both, and stays as it was where the server refuses", async () => {
    const [one, two] = [await device("a"), await device("b")];
    const id = await askAndFinish(one);
    await one.library?.rename(id, "  Numbers ");
    await two.library?.pin(id, true);
    for (const tab of [one, two]) expect(first(tab).label).toMatchObject({ name: "Numbers", pinned: true });
    server.away = true;
    await expect(one.library?.rename(id, "Letters")).rejects.toBeInstanceOf(ApiError);
    expect(first(one).label.name).toBe("Numbers");
  });
});

describe("settings", () => {
  it("are the same on both devices, and leave what others keep beside them", async () => {
    const [one, two] = [await device("a"), await device("b")];
    const id = one.controller.ask(null, "Count.", { ...DEFAULT_SETTINGS, model: "test-model", temperature: 0.5 });
    await clock.pass(10);
    expect(first(two).settings).toMatchObject({ model: "test-model", temperature: 0.5 });
    server.tell("conversation.updated", { conversation_id: `conv_${id}`, metadata: Object.assign(server.conversations.get(`conv_${id}`)?.metadata ?? {}, { mine: "kept" }) });
    two.controller.set(id, { ...DEFAULT_SETTINGS, instructions: "Be brief." });
    two.library?.set(id);
    await clock.pass(10);
    expect(first(one).settings).toMatchObject({ model: null, instructions: "Be brief.", temperature: null });
    expect(server.conversations.get(`conv_${id}`)?.metadata).toEqual({ [PAGE_ID]: id, mine: "kept", "page.instructions.0": "Be brief." });
  });
});

describe("deleting", () => {
  it("can be undone, and is told to the server after that", async () => {
    const [one, two] = [await device("a"), await device("b")];
    const id = await askAndFinish(one);
    await open(two);
    const conversation = one.library?.remove(id) as Conversation;
    expect(one.controller.list()).toEqual([]);
    await one.library?.refresh();
    expect(one.controller.list()).toEqual([]);
    one.library?.restore(conversation);
    await clock.pass(UNDO_MS + 100);
    expect(server.conversations.size).toBe(1);
    expect(path(one)).toEqual(["Count.", WHOLE]);
    one.library?.remove(id);
    await clock.pass(UNDO_MS + 100);
    expect(server.conversations.size).toBe(0);
    expect(two.controller.list()).toEqual([]);
  });

  it("is made good after a crash, and after the server was away", async () => {
    const storage = new SharedStorage();
    const one = await device("a", storage);
    const id = await askAndFinish(one);
    one.library?.remove(id);
    one.kill(storage);
    server.away = true;
    await clock.pass(UNDO_MS + 100);
    const two = await device("b", storage);
    expect(two.controller.list()).toEqual([]);
    expect(server.conversations.size).toBe(1);
    server.away = false;
    two.connect();
    await clock.pass(10);
    expect(server.conversations.size).toBe(0);
    expect(storage.deletions.size).toBe(0);
  });

  it("is noticed by a device that was away for long", async () => {
    const storage = new SharedStorage();
    const [one, two] = [await device("a"), await device("b", storage)];
    const id = await askAndFinish(one);
    await open(two);
    two.kill(storage);
    one.library?.remove(id);
    await clock.pass(UNDO_MS + 100);
    const three = await device("c", storage);
    expect(three.controller.list()).toEqual([]);
  });
});

describe("what the server does not keep", () => {
  it("is a chat of this browser where the server keeps none", async () => {
    server.offered = false;
    const one = await device("a");
    const id = await askAndFinish(one);
    await askAndFinish(one, "More?", id);
    expect(server.asks[1]).toMatchObject({ conversation: null, previousResponseId: "resp_1" });
    expect(server.conversations.size).toBe(0);
    expect(server.titles).toEqual([]);
  });

  it("is a chat that was begun before", async () => {
    server.offered = false;
    const one = await device("a");
    const id = await askAndFinish(one);
    server.offered = true;
    await askAndFinish(one, "More?", id);
    expect(server.asks[1]).toMatchObject({ conversation: null, previousResponseId: "resp_1" });
  });

  it("is sent later where the server is away for a moment", async () => {
    const one = await device("a");
    server.away = true;
    one.pause = async () => {
      server.away = false;
    };
    const id = await askAndFinish(one);
    expect(server.asks).toHaveLength(1);
    expect(first(one).remote).toBe(`conv_${id}`);
  });

  it("makes room for what it has not", async () => {
    const storage = new SharedStorage();
    const one = await device("a", storage);
    const old = await askAndFinish(one, "Old.");
    await clock.pass(5000);
    let isRefused = false;
    const write = one.store.write;
    one.store.write = (conversation) => {
      const record = JSON.parse(storage.records.get(old) ?? "{}") as Conversation;
      if (record.turns.length > 0 && conversation.id !== old) {
        isRefused = true;
        return false;
      }
      return write(conversation);
    };
    const id = await ask(one, "New.");
    expect(isRefused).toBe(true);
    expect(JSON.parse(storage.records.get(id) ?? "{}")).toMatchObject({ turns: [{ question: "New." }] });
    expect(one.controller.popStorageFull()).toBe(false);
    const two = await device("b", storage);
    two.library?.open(old);
    await clock.pass(10);
    expect(visibleTurns(two.controller.get(old) as Conversation)[0]).toMatchObject({ question: "Old.", answer: { text: WHOLE } });
  });
});

describe("search", () => {
  it("finds chats that this device never listed", async () => {
    const one = await device("a");
    for (const question of ["needle", "2", "3", "4", "5"]) {
      await askAndFinish(one, question);
      await clock.pass(2000);
    }
    const two = await device("b");
    expect(two.controller.list()).toHaveLength(3);
    const snippets = await two.library?.search("needle");
    expect([...(snippets ?? [])].map(([id, snippet]) => [two.controller.get(id)?.remote, snippet])).toEqual([[`conv_${[...(snippets?.keys() ?? [])][0]}`, "… needle …"]]);
  });
});

describe("an address", () => {
  it("names a chat on any device, and says where there is none", async () => {
    const one = await device("a");
    const id = await askAndFinish(one);
    const two = server.device("b");
    expect(await two.library?.resolve(`conv_${id}`)).toBe(id);
    expect(await two.library?.resolve("conv_none")).toBeNull();
    expect(await two.library?.resolve(id)).toBe(id);
    await flushPromises();
  });
});
