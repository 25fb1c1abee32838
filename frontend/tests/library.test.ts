import { beforeEach, describe, expect, it } from "vitest";
import { chain, shown, title, type Conversation, type Turn } from "../src/core/conversation";
import { said } from "../src/core/reading";
import { ApiError } from "../src/edge/api";
import { USUAL } from "../src/core/settings";
import { PAGE_ID } from "../src/edge/conversations";
import { UNDO_MS } from "../src/library";
import { Clock, settled, SharedStorage, type Tab } from "./world";
import { Shelf } from "./shelf";

const PIECES = ["One ", "two ", "three."];
const WHOLE = "One two three.";

let clock: Clock;
let server: Shelf;

beforeEach(() => {
  clock = new Clock();
  server = new Shelf(clock);
});

async function ask(tab: Tab, question = "Count.", id: string | null = null): Promise<string> {
  const made = tab.controller.ask(id, question, null);
  tab.library?.open(made);
  await clock.pass(10);
  return made;
}

async function answered(tab: Tab, question = "Count.", id: string | null = null): Promise<string> {
  const made = await ask(tab, question, id);
  server.stream(server.last, PIECES);
  await clock.pass(10);
  return made;
}

function first(tab: Tab): Conversation {
  return tab.controller.list()[0] as Conversation;
}

function path(tab: Tab): string[] {
  return shown(first(tab)).flatMap((turn: Turn) => [turn.question, said(chain(turn))]);
}

async function opened(tab: Tab): Promise<void> {
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
    await opened(two);
    expect(path(two)).toEqual(["Count.", ""]);
    server.stream(server.last, PIECES, 7);
    expect(path(two)).toEqual(["Count.", "One two "]);
    server.stream(server.last, PIECES);
    expect(path(two)).toEqual(["Count.", WHOLE]);
    expect(shown(first(two))[0]?.id).toBe(shown(first(one))[0]?.id);
    expect([...one.warnings, ...two.warnings]).toEqual([]);
  });

  it("goes on at the other device, behind the answer before", async () => {
    const [one, two] = [await device("a"), await device("b")];
    const id = await answered(one);
    await opened(two);
    await answered(two, "And then?", id);
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
    const id = await answered(one);
    await opened(two);
    const [before] = shown(first(one));
    one.controller.edit(id, before?.id ?? "", "Count down.");
    await clock.pass(10);
    server.stream(server.last, ["Three."]);
    expect(server.asks[1]).toMatchObject({ conversation: `conv_${id}`, previousResponseId: null });
    await clock.pass(10);
    expect(path(two)).toEqual(["Count down.", "Three."]);
    expect(first(two).turns).toHaveLength(2);
    two.controller.choose(id, before?.id ?? "");
    two.library?.chosen(id);
    await clock.pass(10);
    expect(path(one)).toEqual(["Count.", WHOLE]);
  });

  it("shows an answer that was continued as one", async () => {
    const [one, two] = [await device("a"), await device("b")];
    const id = await ask(one);
    server.stream(server.last, ["Half "], Infinity, { type: "response.incomplete", reason: "max_output_tokens", continues: true });
    one.controller.more(id, shown(first(one))[0]?.id ?? "");
    await clock.pass(10);
    expect(server.asks[1]).toMatchObject({ input: [], previousResponseId: "resp_1" });
    server.stream(server.last, ["and half."]);
    await opened(two);
    expect(path(two)).toEqual(["Count.", "Half and half."]);
    expect(first(two).turns).toEqual(first(one).turns.map((turn) => ({ ...turn, tab: expect.any(String), answer: expect.anything(), before: expect.anything(), sentAt: expect.any(Number) })));
  });

  it("is read whole by a device that comes later, and its versions too", async () => {
    const one = await device("a");
    const id = await answered(one);
    for (const question of ["Two?", "Three?", "Four?"]) await answered(one, question, id);
    one.controller.retry(id, shown(first(one))[1]?.id ?? "");
    await clock.pass(10);
    server.stream(server.last, ["Other."]);
    const two = await device("b");
    expect(first(two).turns).toEqual([]);
    expect(two.library?.state(first(two))).toBe("coming");
    await opened(two);
    expect(path(two)).toEqual(path(one));
    expect(path(two)).toEqual(["Count.", WHOLE, "Two?", "Other."]);
    expect(first(two).turns.map((turn) => turn.id).sort()).toEqual(first(one).turns.map((turn) => turn.id).sort());
  });

  it("waits for a turn whose request is not yet in the log", async () => {
    const [one, two] = [await device("a"), await device("b")];
    const id = await answered(one);
    await opened(two);
    server.unwritten.add("resp_2");
    await ask(one, "More?", id);
    expect(path(two)).toEqual(["Count.", WHOLE]);
    server.unwritten.clear();
    await clock.pass(400);
    expect(path(two)).toEqual(["Count.", WHOLE, "More?", ""]);
  });

  it("shows another version of a question when that is in the log, too", async () => {
    const [one, two] = [await device("a"), await device("b")];
    const id = await answered(one);
    await opened(two);
    const edited = async (question: string): Promise<void> => {
      one.controller.edit(id, shown(first(one))[0]?.id ?? "", question);
      await clock.pass(10);
    };
    const before = shown(first(one))[0]?.id ?? "";
    await edited("Count down.");
    server.stream(server.last, ["Three."]);
    one.controller.choose(id, before);
    one.library?.chosen(id);
    await clock.pass(10);
    server.unwritten.add("resp_3");
    await edited("Count up.");
    expect(path(two)).toEqual(["Count.", WHOLE]);
    server.unwritten.clear();
    await clock.pass(400);
    expect(path(two)).toEqual(["Count up.", ""]);
  });

  it("keeps the time at which it was asked when the feed tells of that late", async () => {
    const one = await device("a");
    await answered(one);
    const { usedAt, remote } = first(one);
    await clock.pass(400);
    one.library?.feed([{ kind: "turn", position: "9", id: remote ?? "", response: "resp_1", parent: null }]);
    expect(first(one).usedAt).toBe(usedAt);
  });

  it("is told what it missed while its connection was cut", async () => {
    const [one, two] = [await device("a"), await device("b")];
    const id = await answered(one);
    await opened(two);
    server.cutOff(two);
    await answered(one, "More?", id);
    expect(path(two)).toEqual(["Count.", WHOLE]);
    two.connect();
    await clock.pass(10);
    expect(path(two)).toEqual(["Count.", WHOLE, "More?", WHOLE]);
  });

  it("is listed with its page of many, and the others when they are asked for", async () => {
    const one = await device("a");
    for (const question of ["1", "2", "3", "4", "5"]) {
      await answered(one, question);
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
    await answered(one);
    server.refusesFeeds = true;
    const two = await device("b");
    expect(two.controller.list()).toEqual([]);
    await clock.pass(6000);
    expect(two.controller.list()).toHaveLength(1);
  });

  it("is not asked for in the name of a user who left meanwhile", async () => {
    const one = await device("a");
    await answered(one);
    server.refusesFeeds = true;
    const two = await device("b");
    two.library?.reset();
    await clock.pass(6000);
    expect(two.controller.list()).toEqual([]);
  });

  it("loses what was deleted before it was ever opened here", async () => {
    const storage = new SharedStorage();
    const [one, two] = [await device("a"), await device("b", storage)];
    const id = await answered(one);
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
    const id = await answered(one);
    expect(title(first(one))).toBe("Counting to three");
    expect(title(first(two))).toBe("Counting to three");
    await answered(one, "More?", id);
    expect(server.titles).toEqual(["Count."]);
  });

  it("keeps the question as its title where the model has none", async () => {
    const one = await device("a");
    server.title = "\n";
    await answered(one);
    expect(title(first(one))).toBe("Count.");
  });

  it("asks for no title where the server wants none", async () => {
    server.titled = false;
    const one = await device("a");
    await answered(one);
    expect(server.titles).toEqual([]);
  });

  it("is renamed and pinned on both, and stays as it was where the server refuses", async () => {
    const [one, two] = [await device("a"), await device("b")];
    const id = await answered(one);
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
    const id = one.controller.ask(null, "Count.", { ...USUAL, model: "test-model", temperature: 0.5 });
    await clock.pass(10);
    expect(first(two).settings).toMatchObject({ model: "test-model", temperature: 0.5 });
    server.tell("conversation.updated", { conversation_id: `conv_${id}`, metadata: Object.assign(server.kept.get(`conv_${id}`)?.metadata ?? {}, { mine: "kept" }) });
    two.controller.set(id, { ...USUAL, instructions: "Be brief." });
    two.library?.set(id);
    await clock.pass(10);
    expect(first(one).settings).toMatchObject({ model: null, instructions: "Be brief.", temperature: null });
    expect(server.kept.get(`conv_${id}`)?.metadata).toEqual({ [PAGE_ID]: id, mine: "kept", "page.instructions.0": "Be brief." });
  });
});

describe("deleting", () => {
  it("can be undone, and is told to the server after that", async () => {
    const [one, two] = [await device("a"), await device("b")];
    const id = await answered(one);
    await opened(two);
    const removed = one.library?.remove(id) as Conversation;
    expect(one.controller.list()).toEqual([]);
    await one.library?.refresh();
    expect(one.controller.list()).toEqual([]);
    one.library?.restore(removed);
    await clock.pass(UNDO_MS + 100);
    expect(server.kept.size).toBe(1);
    expect(path(one)).toEqual(["Count.", WHOLE]);
    one.library?.remove(id);
    await clock.pass(UNDO_MS + 100);
    expect(server.kept.size).toBe(0);
    expect(two.controller.list()).toEqual([]);
  });

  it("is made good after a crash, and after the server was away", async () => {
    const storage = new SharedStorage();
    const one = await device("a", storage);
    const id = await answered(one);
    one.library?.remove(id);
    one.kill(storage);
    server.away = true;
    await clock.pass(UNDO_MS + 100);
    const two = await device("b", storage);
    expect(two.controller.list()).toEqual([]);
    expect(server.kept.size).toBe(1);
    server.away = false;
    two.connect();
    await clock.pass(10);
    expect(server.kept.size).toBe(0);
    expect(storage.removed.size).toBe(0);
  });

  it("is noticed by a device that was away for long", async () => {
    const storage = new SharedStorage();
    const [one, two] = [await device("a"), await device("b", storage)];
    const id = await answered(one);
    await opened(two);
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
    const id = await answered(one);
    await answered(one, "More?", id);
    expect(server.asks[1]).toMatchObject({ conversation: null, previousResponseId: "resp_1" });
    expect(server.kept.size).toBe(0);
    expect(server.titles).toEqual([]);
  });

  it("is a chat that was begun before", async () => {
    server.offered = false;
    const one = await device("a");
    const id = await answered(one);
    server.offered = true;
    await answered(one, "More?", id);
    expect(server.asks[1]).toMatchObject({ conversation: null, previousResponseId: "resp_1" });
  });

  it("is sent later where the server is away for a moment", async () => {
    const one = await device("a");
    server.away = true;
    one.pause = async () => {
      server.away = false;
    };
    const id = await answered(one);
    expect(server.asks).toHaveLength(1);
    expect(first(one).remote).toBe(`conv_${id}`);
  });

  it("makes room for what it has not", async () => {
    const storage = new SharedStorage();
    const one = await device("a", storage);
    const old = await answered(one, "Old.");
    await clock.pass(5000);
    let refused = false;
    const write = one.store.write;
    one.store.write = (conversation) => {
      const kept = JSON.parse(storage.written.get(old) ?? "{}") as Conversation;
      if (kept.turns.length > 0 && conversation.id !== old) {
        refused = true;
        return false;
      }
      return write(conversation);
    };
    const id = await ask(one, "New.");
    expect(refused).toBe(true);
    expect(JSON.parse(storage.written.get(id) ?? "{}")).toMatchObject({ turns: [{ question: "New." }] });
    expect(one.controller.takeStorageFull()).toBe(false);
    const two = await device("b", storage);
    two.library?.open(old);
    await clock.pass(10);
    expect(shown(two.controller.get(old) as Conversation)[0]).toMatchObject({ question: "Old.", answer: { text: WHOLE } });
  });
});

describe("search", () => {
  it("finds chats that this device never listed", async () => {
    const one = await device("a");
    for (const question of ["needle", "2", "3", "4", "5"]) {
      await answered(one, question);
      await clock.pass(2000);
    }
    const two = await device("b");
    expect(two.controller.list()).toHaveLength(3);
    const found = await two.library?.search("needle");
    expect([...(found ?? [])].map(([id, snippet]) => [two.controller.get(id)?.remote, snippet])).toEqual([[`conv_${[...(found?.keys() ?? [])][0]}`, "… needle …"]]);
  });
});

describe("an address", () => {
  it("names a chat on any device, and says where there is none", async () => {
    const one = await device("a");
    const id = await answered(one);
    const two = server.device("b");
    expect(await two.library?.resolve(`conv_${id}`)).toBe(id);
    expect(await two.library?.resolve("conv_none")).toBeNull();
    expect(await two.library?.resolve(id)).toBe(id);
    await settled();
  });
});
