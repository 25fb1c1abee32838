import { beforeEach, describe, expect, it } from "vitest";
import { chain, visibleTurns, versions, type Conversation, type Turn } from "../src/core/conversation";
import { ApiError } from "../src/edge/api";
import { parts, type Answer } from "../src/core/answer";
import type { Attachment } from "../src/core/attachments";
import { messageText } from "../src/core/reading";
import { DEFAULT_SETTINGS } from "../src/core/settings";
import { recorded, series } from "./events";
import { Clock, Server, flushPromises, SharedStorage, Tab } from "./world";

const PIECES = ["One ", "two ", "three ", "four."];
const WHOLE = "One two three four.";
const EVENTS = series("x", PIECES).length;

let clock: Clock;
let server: Server;
let storage: SharedStorage;

beforeEach(() => {
  clock = new Clock();
  server = new Server();
  storage = new SharedStorage();
});

function tab(name = "a"): Tab {
  return new Tab(server, storage, clock, name).begin();
}

function only(one: Tab): Turn {
  const conversation = one.controller.list()[0] as Conversation;
  expect(one.controller.list()).toHaveLength(1);
  expect(visibleTurns(conversation)).toHaveLength(1);
  return visibleTurns(conversation)[0] as Turn;
}

async function ask(one: Tab, question = "Count."): Promise<string> {
  const id = one.controller.ask(null, question, { ...DEFAULT_SETTINGS, model: "test-model" });
  await flushPromises();
  return id;
}

function conversationIn(id: string): Conversation {
  return JSON.parse(storage.records.get(id) ?? "null") as Conversation;
}

const unreachable = new ApiError(0, { code: "unreachable", message: "no" }, null);

describe("asking", () => {
  it("shows the question at once and the answer as it comes", async () => {
    const one = tab();
    await ask(one);
    expect(only(one)).toMatchObject({ question: "Count.", phase: "accepted", answer: { status: "queued", text: "" } });
    server.stream(server.last, PIECES, 7);
    expect(only(one).answer).toMatchObject({ status: "in_progress", text: "One two " });
    server.stream(server.last, PIECES);
    expect(only(one).answer).toMatchObject({ status: "completed", text: WHOLE });
    expect(one.warnings).toEqual([]);
  });

  it("continues the conversation from the answer before", async () => {
    const one = tab();
    const id = await ask(one);
    server.stream(server.last, PIECES);
    one.controller.ask(id, "And then?", null);
    await flushPromises();
    expect(server.asks[1]).toMatchObject({ input: "And then?", previousResponseId: "resp_1" });
  });

  it("tells the whole story again when the server forgot the answer before", async () => {
    const one = tab();
    const id = await ask(one);
    server.stream(server.last, PIECES);
    server.errors.push({ kind: "refuse", error: new ApiError(400, { code: "previous_response_not_found", message: "gone" }, null) });
    one.controller.ask(id, "And then?", null);
    await flushPromises();
    expect(server.asks[2]).toMatchObject({
      previousResponseId: null,
      input: [
        { role: "user", content: "Count." },
        { role: "assistant", content: WHOLE },
        { role: "user", content: "And then?" },
      ],
    });
    expect(one.controller.get(id)?.turns[1]).toMatchObject({ phase: "accepted" });
  });

  it("does not ask twice when the answer to the request was lost on the way", async () => {
    const one = tab();
    server.errors.push({ kind: "lose", error: unreachable });
    await ask(one);
    expect(server.asks.map((ask) => ask.key)).toHaveLength(2);
    expect(new Set(server.asks.map((ask) => ask.key)).size).toBe(1);
    expect(server.log.size).toBe(1);
    expect(only(one).phase).toBe("accepted");
  });

  it("says why a question was refused, and a retry does not double it", async () => {
    const one = tab();
    for (let round = 0; round < 4; round += 1) server.errors.push({ kind: "refuse", error: unreachable });
    const id = await ask(one);
    expect(only(one)).toMatchObject({ phase: "unsent", problem: { again: true } });
    one.controller.retry(id, only(one).id);
    await flushPromises();
    expect(only(one).phase).toBe("accepted");
    server.stream(server.last, PIECES);
    expect(only(one).answer?.text).toBe(WHOLE);
    expect(server.log.size).toBe(1);
  });

  it("is not tried again by itself when it can only be refused again", async () => {
    const one = tab();
    server.errors.push({ kind: "refuse", error: new ApiError(400, { code: "invalid", message: "The input is too long." }, null) });
    const id = await ask(one);
    expect(server.asks).toHaveLength(1);
    expect(only(one)).toMatchObject({ phase: "unsent", problem: { again: false, words: "The input is too long." } });
    expect(one.controller.withdraw(id, only(one).id)).toBe("Count.");
    expect(one.controller.list()).toEqual([]);
  });
});

describe("settings of a chat", () => {
  const FULL = { model: "test-model", instructions: "Be brief.", temperature: 0.5, length: 20 };
  const SETTINGS = { model: "test-model", instructions: "Be brief.", temperature: 0.5, maxOutputTokens: 20 };

  it("go with every question, and with other answers and more of them", async () => {
    const one = tab();
    const id = one.controller.ask(null, "Count.", FULL);
    await flushPromises();
    server.play(server.last, recorded("shortened"));
    one.controller.more(id, only(one).id);
    await flushPromises();
    server.stream(server.last, PIECES);
    one.controller.retry(id, only(one).id);
    await flushPromises();
    server.stream(server.last, PIECES);
    one.controller.edit(id, only(one).id, "Count on.");
    await flushPromises();
    server.stream(server.last, PIECES);
    one.controller.ask(id, "And then?", null);
    await flushPromises();
    expect(server.asks).toHaveLength(5);
    for (const ask of server.asks) expect(ask).toMatchObject(SETTINGS);
    one.controller.set(id, DEFAULT_SETTINGS);
    server.stream(server.last, PIECES);
    one.controller.ask(id, "And now?", null);
    await flushPromises();
    expect(server.asks[5]).toMatchObject({ model: null, instructions: "", temperature: null, maxOutputTokens: null });
  });

  it("that change do not change a request that may have been heard", async () => {
    const one = tab();
    for (let round = 0; round < 4; round += 1) server.errors.push({ kind: "lose", error: unreachable });
    const id = one.controller.ask(null, "Count.", FULL);
    await flushPromises();
    expect(only(one).phase).toBe("unsent");
    one.controller.set(id, DEFAULT_SETTINGS);
    one.controller.retry(id, only(one).id);
    await flushPromises();
    expect(only(one)).toMatchObject({ phase: "accepted", settings: null });
    for (const ask of server.asks) expect(ask).toMatchObject({ ...SETTINGS, key: server.asks[0]?.key });
    expect(server.log.size).toBe(1);
  });

  it("reach the other tabs and are there after a reload; a new chat begins with the model alone", async () => {
    const [one, two] = [tab("a"), tab("b")];
    const id = await ask(one);
    one.controller.set(id, FULL);
    expect(two.controller.settings(id)).toEqual(FULL);
    two.controller.set(id, { ...FULL, length: null });
    expect(one.controller.settings(id)).toEqual({ ...FULL, length: null });
    expect(tab("c").controller.settings(id)).toEqual({ ...FULL, length: null });
    expect(one.controller.settings(null)).toEqual({ ...DEFAULT_SETTINGS, model: "test-model" });
  });

  it("name no model that is not offered any more", async () => {
    const one = tab();
    one.controller.models = ["other"];
    await ask(one);
    expect(server.asks[0]).toMatchObject({ model: null });
    expect(one.controller.settings(null).model).toBeNull();
  });
});

describe("attachments", () => {
  const file: Attachment = { fileId: "f1", name: "notes.md", kind: "file", bytes: 5, expiresAt: 2_000_000 };
  const input = [{ role: "user", content: [{ type: "input_file", file_id: "f1" }, { type: "input_text", text: "Count." }] }];

  it("are kept with the question, and go with it again", async () => {
    const one = tab();
    const id = one.controller.ask(null, "Count.", null, [file]);
    await flushPromises();
    expect(conversationIn(id).turns[0]?.attachments).toEqual([file]);
    server.stream(server.last, PIECES);
    one.controller.retry(id, only(one).id);
    await flushPromises();
    expect(server.asks.map((ask) => ask.input)).toEqual([input, input]);
    expect(only(one).attachments).toEqual([file]);
  });

  it("that the server no longer has are said, before the question is sent without them", async () => {
    const one = tab();
    const id = one.controller.ask(null, "Count.", null, [file]);
    await flushPromises();
    server.stream(server.last, PIECES);
    clock.now = 2_000_000;
    one.controller.retry(id, only(one).id);
    await flushPromises();
    expect(server.asks).toHaveLength(1);
    expect(only(one)).toMatchObject({ phase: "unsent", problem: { code: "file_expired", again: false, words: expect.stringContaining("notes.md") as string } });
    one.controller.withdraw(id, only(one).id);
    one.controller.ask(id, "And then?", null);
    await flushPromises();
    expect(server.asks[1]).toMatchObject({ input: "And then?", previousResponseId: "resp_1" });
  });
});

describe("an answer that was cut short", () => {
  const text = (one: Tab): string => messageText(chain(only(one)));

  async function cut(one: Tab): Promise<string> {
    const id = await ask(one);
    server.play(server.last, recorded("shortened"));
    expect(only(one).answer).toMatchObject({ status: "incomplete", shortened: true, continuable: true });
    return id;
  }

  it("goes on in the same turn, also after a reload and in another tab", async () => {
    const one = tab("a");
    const two = tab("b");
    const id = await cut(one);
    one.controller.more(id, only(one).id);
    await flushPromises();
    expect(server.asks[1]).toMatchObject({ input: [], previousResponseId: "resp_1", model: "test-model" });
    server.play("resp_2", recorded("more"), 6);
    await clock.pass(400);
    one.kill(storage);
    const again = tab("a");
    await flushPromises();
    server.play("resp_2", recorded("more"));
    await flushPromises();
    for (const each of [again, two]) {
      expect(text(each)).toBe("Once upon a time.");
      expect(only(each)).toMatchObject({ phase: "accepted", answer: { responseId: "resp_2", status: "completed" } });
      expect(each.warnings).toEqual([]);
    }
    again.controller.ask(id, "And then?", null);
    await flushPromises();
    expect(server.asks[2]).toMatchObject({ input: "And then?", previousResponseId: "resp_2" });
  });

  it("is continued once when two tabs want more at the same time", async () => {
    const one = tab("a");
    const two = tab("b");
    const id = await cut(one);
    await clock.pass(400);
    storage.hold();
    for (const each of [one, two]) each.controller.more(id, only(each).id);
    await flushPromises();
    storage.release();
    await clock.pass(400);
    expect(server.log.size).toBe(2);
    server.play("resp_2", recorded("more"));
    for (const each of [one, two]) expect(text(each)).toBe("Once upon a time.");
  });

  it("keeps its text when more of it is refused, and can be tried again", async () => {
    const one = tab();
    const id = await cut(one);
    server.errors.push({ kind: "refuse", error: new ApiError(429, { code: "rate_limit_exceeded", message: "no" }, 30_000) });
    one.controller.more(id, only(one).id);
    await flushPromises();
    expect(only(one)).toMatchObject({ phase: "unsent", problem: { again: true } });
    expect(text(one)).toBe("Once upon ");
    expect(one.controller.withdraw(id, only(one).id)).toBe("");
    one.controller.retry(id, only(one).id);
    await flushPromises();
    server.play(server.last, recorded("more"));
    expect(text(one)).toBe("Once upon a time.");
  });

  it("that the server forgot says so, and is not asked for as a message", async () => {
    const one = tab();
    const id = await cut(one);
    server.errors.push({ kind: "refuse", error: new ApiError(400, { code: "previous_response_not_found", message: "gone" }, null) });
    one.controller.more(id, only(one).id);
    await flushPromises();
    expect(server.asks).toHaveLength(2);
    expect(only(one)).toMatchObject({ phase: "unsent", problem: { again: false, words: expect.stringContaining("no longer") as string } });
  });

  it("is not continued twice, nor where it is whole", async () => {
    const one = tab();
    const id = await cut(one);
    one.controller.more(id, only(one).id);
    one.controller.more(id, only(one).id);
    await flushPromises();
    server.play(server.last, recorded("more"));
    one.controller.more(id, only(one).id);
    await flushPromises();
    expect(server.asks).toHaveLength(2);
  });

  it("is kept as a whole beside another answer", async () => {
    const one = tab();
    const id = await cut(one);
    one.controller.more(id, only(one).id);
    await flushPromises();
    server.play(server.last, recorded("more"));
    one.controller.retry(id, only(one).id);
    await flushPromises();
    server.stream(server.last, PIECES);
    expect(server.asks[2]).toMatchObject({ input: "Count.", previousResponseId: null });
    expect(text(one)).toBe(WHOLE);
    const [former] = versions(one.controller.get(id) as Conversation, only(one));
    expect(chain(former as Turn).map(({ responseId }) => responseId)).toEqual(["resp_1", "resp_2"]);
  });
});

describe("another version", () => {
  const questions = (one: Tab, id: string): string[] => visibleTurns(one.controller.get(id) as Conversation).map(({ question }) => question);

  async function answerQuestion(pieces = PIECES): Promise<void> {
    await flushPromises();
    server.stream(server.last, pieces);
  }

  it("leaves the first answer alone, also when it is stopped", async () => {
    const [one, two] = [tab("a"), tab("b")];
    const id = await ask(one);
    await answerQuestion();
    const first = only(one);
    one.controller.retry(id, first.id);
    await flushPromises();
    server.stream(server.last, ["Un"], 5);
    one.controller.stop(id, only(one).id);
    await flushPromises();
    server.stream(server.last, ["Un"], Infinity, { type: "response.incomplete", status: "cancelled" });
    expect(server.cancelled).toEqual(["resp_2"]);
    expect(only(one).answer?.responseId).toBe("resp_2");
    one.controller.choose(id, first.id);
    for (const each of [one, two]) expect(only(each)).toMatchObject({ id: first.id, answer: { status: "completed", text: WHOLE } });
    expect(new Set(server.asks.map(({ key }) => key)).size).toBe(2);
  });

  it("of an earlier question begins a path of its own, and the former one is still there", async () => {
    const one = tab();
    const id = await ask(one);
    await answerQuestion();
    one.controller.ask(id, "And then?", null);
    await answerQuestion(["five"]);
    const first = visibleTurns(one.controller.get(id) as Conversation)[0] as Turn;
    one.controller.edit(id, first.id, "Count down.");
    await answerQuestion(["two one"]);
    expect(questions(one, id)).toEqual(["Count down."]);
    one.controller.ask(id, "Zero?", null);
    await answerQuestion(["zero"]);
    expect(server.asks.at(-1)).toMatchObject({ input: "Zero?", previousResponseId: "resp_3" });
    one.controller.choose(id, first.id);
    expect(questions(one, id)).toEqual(["Count.", "And then?"]);
    expect(questions(new Tab(server, storage, clock, "c").begin(), id)).toEqual(["Count.", "And then?"]);
  });

  it("that is sent without the oldest messages says so to the server", async () => {
    const one = tab();
    server.errors.push({ kind: "refuse", error: new ApiError(400, { code: "context_length_exceeded", message: "too long" }, null) });
    const id = await ask(one);
    expect(only(one).problem).toMatchObject({ code: "context_length_exceeded", again: false });
    one.controller.trim(id, only(one).id);
    await answerQuestion();
    expect(server.asks.map(({ trimmed }) => trimmed)).toEqual([false, true]);
    expect(only(one).answer?.text).toBe(WHOLE);
    server.log.clear();
    one.controller.trim(id, only(one).id);
    await flushPromises();
    expect(server.asks.at(-1)).toMatchObject({ trimmed: true });
  });
});

describe("a question that is asked while an answer runs", () => {
  async function queued(one: Tab): Promise<string> {
    const id = await ask(one);
    server.stream(server.last, PIECES, 4);
    one.controller.ask(id, "And then?", null);
    one.controller.ask(id, "And at last?", null);
    await flushPromises();
    expect(server.asks).toHaveLength(1);
    return id;
  }

  it("is sent when it has ended, one after the other", async () => {
    const one = tab();
    const id = await queued(one);
    server.stream(server.last, PIECES);
    await flushPromises();
    expect(server.asks.slice(1)).toMatchObject([{ input: "And then?", previousResponseId: "resp_1" }]);
    server.stream(server.last, ["five"]);
    await flushPromises();
    expect(server.asks.slice(2)).toMatchObject([{ input: "And at last?", previousResponseId: "resp_2" }]);
    expect(visibleTurns(one.controller.get(id) as Conversation)).toHaveLength(3);
  });

  it("can be taken back, and what follows it moves up", async () => {
    const one = tab();
    const id = await queued(one);
    const waiting = visibleTurns(one.controller.get(id) as Conversation)[1] as Turn;
    expect(one.controller.withdraw(id, waiting.id)).toBe("And then?");
    server.stream(server.last, PIECES);
    await flushPromises();
    expect(server.asks.slice(1)).toMatchObject([{ input: "And at last?", previousResponseId: "resp_1" }]);
  });

  it("is sent after a reload, and by another tab when its own is gone", async () => {
    const [one, two] = [tab("a"), tab("b")];
    await queued(one);
    one.kill(storage);
    server.stream(server.last, PIECES);
    await flushPromises();
    expect(server.asks).toHaveLength(1);
    await clock.pass(6000);
    expect(server.asks.slice(1)).toMatchObject([{ input: "And then?" }]);
    two.kill(storage);
    server.stream(server.last, ["five"]);
    tab("a");
    await clock.pass(6000);
    expect(server.asks.slice(2)).toMatchObject([{ input: "And at last?" }]);
    expect(new Set(server.asks.map(({ key }) => key)).size).toBe(3);
  });
});

describe("a question that is asked without a connection", () => {
  it("is sent by itself when there is one, under the same key", async () => {
    const one = tab();
    one.cut();
    one.online = false;
    server.errors.push({ kind: "refuse", error: unreachable });
    await ask(one);
    expect(only(one)).toMatchObject({ phase: "unsent", problem: { waits: true } });
    expect(server.asks).toHaveLength(1);
    one.online = true;
    one.connect();
    await flushPromises();
    server.stream(server.last, PIECES);
    expect(only(one).answer?.text).toBe(WHOLE);
    expect(new Set(server.asks.map(({ key }) => key)).size).toBe(1);
  });

  it("or without being signed in, waits for that, also through a reload", async () => {
    const one = tab();
    server.errors.push({ kind: "refuse", error: new ApiError(401, { code: "invalid_api_key", message: "no" }, null) });
    await ask(one);
    expect(only(one).problem).toMatchObject({ waits: true, words: expect.stringContaining("not signed in") as string });
    one.kill(storage);
    const again = tab("a");
    await flushPromises();
    expect(server.asks).toHaveLength(2);
    expect(only(again).phase).toBe("accepted");
  });

  it("and refused for another reason is not sent again", async () => {
    const one = tab();
    server.errors.push({ kind: "refuse", error: new ApiError(413, { code: "too_large", message: "no" }, null) });
    await ask(one);
    one.cut();
    one.connect();
    await clock.pass(10_000);
    expect(server.asks).toHaveLength(1);
  });
});

describe("a connection that comes back", () => {
  it("catches up until the first of what was missed is there", async () => {
    const one = tab();
    await ask(one);
    expect(one.controller.catchingUp).toBe(false);
    server.stream(server.last, PIECES, 4);
    one.cut();
    expect(one.controller.catchingUp).toBe(false);
    one.connect();
    expect(one.controller.catchingUp).toBe(true);
    server.stream(server.last, PIECES, 5);
    await flushPromises();
    expect(one.controller.catchingUp).toBe(false);
    one.cut();
    one.connect();
    await clock.pass(1500); // nothing was missed
    expect(one.controller.catchingUp).toBe(false);
  });
});

describe("another user", () => {
  it("sees nothing of the one before, whose answer is followed no more", async () => {
    const one = tab();
    const id = await ask(one);
    server.stream(server.last, PIECES, 4);
    storage.records.clear(); // the store has no conversation under the other name
    one.controller.load("bob");
    expect(one.controller.list()).toEqual([]);
    expect(one.controller.get(id)).toBeNull();
    expect(one.messages.at(-1)).toEqual({ type: "unwatch", response_id: "resp_1" });
  });
});

describe("a question that is refused for a moment", () => {
  it("says so until it is sent again", async () => {
    const one = tab();
    let resume = (): void => undefined;
    one.pause = () => new Promise((done) => (resume = done));
    server.errors.push({ kind: "refuse", error: new ApiError(429, { code: "rate_limit_exceeded", message: "no" }, 4000) });
    await ask(one);
    expect(one.controller.refusal(only(one).id)).toEqual({ status: 429, until: clock.now + 4000 });
    resume();
    await flushPromises();
    expect(one.controller.refusal(only(one).id)).toBeNull();
    expect(only(one).phase).toBe("accepted");
  });
});

describe("a reload", () => {
  it.each(Array.from({ length: EVENTS + 1 }, (_, cut) => cut))("after %i events goes on exactly there", async (cut) => {
    const one = tab();
    await ask(one);
    server.stream(server.last, PIECES, cut);
    one.controller.flush();
    one.kill(storage);
    server.stream(server.last, PIECES, Math.min(cut + 2, EVENTS));
    const two = tab();
    await flushPromises();
    server.stream(server.last, PIECES);
    await flushPromises();
    expect(only(two).answer).toMatchObject({ status: "completed", text: WHOLE });
    expect(two.warnings).toEqual([]);
    const watch = two.messages.find((message) => message["type"] === "watch");
    if (cut > 0 && cut < EVENTS) expect(watch).toMatchObject({ starting_after: cut - 1 });
  });

  it("loses nothing when the tab crashed before it could write", async () => {
    const one = tab();
    await ask(one);
    server.stream(server.last, PIECES, 8);
    one.kill(storage);
    const two = tab();
    await flushPromises();
    server.stream(server.last, PIECES);
    await flushPromises();
    expect(only(two).answer?.text).toBe(WHOLE);
  });

  it("anywhere in an answer with reasoning and calls goes on exactly there, and another tab shows the same", async () => {
    const events = recorded("items");
    for (let cut = 0; cut <= events.length; cut += 1) {
      storage = new SharedStorage();
      server = new Server();
      const one = tab();
      await ask(one);
      server.play(server.last, events, cut);
      one.controller.flush();
      one.kill(storage);
      server.play(server.last, events, cut + 2);
      const two = tab("a");
      const three = tab("b");
      await flushPromises();
      server.play(server.last, events);
      await flushPromises();
      for (const each of [two, three]) {
        const answer = only(each).answer as Answer;
        expect(parts(answer).map(({ kind, text }) => `${kind} ${text}`)).toEqual([
          "reasoning I think 天気.",
          "message Let me < see.",
          'function {"city":"Zürich"}',
          'function {"city":"Łódź"}',
          "message So.",
        ]);
        expect(each.warnings).toEqual([]);
      }
      if (cut > 0 && cut < events.length) expect(two.messages.find((message) => message["type"] === "watch")).toMatchObject({ starting_after: cut - 1 });
    }
  });

  it("while the question is on its way sends it under the same key", async () => {
    const one = tab();
    one.controller.ask(null, "Count.", null);
    one.kill(storage);
    const two = tab();
    await flushPromises();
    expect(server.asks).toHaveLength(2);
    expect(new Set(server.asks.map((ask) => ask.key)).size).toBe(1);
    expect(server.log.size).toBe(1);
    expect(only(two).phase).toBe("accepted");
  });

  it("finds a question that another tab left unsent, and says so", async () => {
    const one = tab("a");
    one.controller.ask(null, "Count.", null);
    const raw = storage.records.get([...storage.records.keys()][0] as string) as string;
    await flushPromises();
    one.kill(storage);
    storage.records.set([...storage.records.keys()][0] as string, raw);
    await clock.pass(120_000);
    expect(only(tab("b"))).toMatchObject({ phase: "unsent", problem: { code: "abandoned" } });
  });
});

describe("a connection that breaks", () => {
  it("at any event and comes back shows the whole answer once", async () => {
    for (let cut = 0; cut <= EVENTS; cut += 1) {
      storage = new SharedStorage();
      server = new Server();
      const one = tab();
      await ask(one);
      server.stream(server.last, PIECES, cut);
      one.cut();
      server.stream(server.last, PIECES, Math.min(cut + 3, EVENTS));
      one.connect();
      await flushPromises();
      server.stream(server.last, PIECES);
      await flushPromises();
      expect(only(one).answer).toMatchObject({ status: "completed", text: WHOLE });
    }
  });

  it("and repeats what was already there changes nothing", async () => {
    const one = tab();
    await ask(one);
    server.stream(server.last, PIECES, 8);
    one.deliver(server.last, series(server.last, PIECES).slice(0, 8));
    server.stream(server.last, PIECES);
    expect(only(one).answer?.text).toBe(WHOLE);
    expect(one.warnings).toEqual([]);
  });
});

describe("a gap", () => {
  it("is noticed, asked for again and filled", async () => {
    const one = tab();
    await ask(one);
    server.stream(server.last, PIECES, 6);
    one.swallow = 1;
    server.stream(server.last, PIECES, 9);
    expect(one.messages.slice(-2)).toEqual([
      { type: "unwatch", response_id: "resp_1" },
      { type: "watch", response_id: "resp_1", starting_after: 5 },
    ]);
    await flushPromises();
    server.stream(server.last, PIECES);
    await flushPromises();
    expect(only(one).answer).toMatchObject({ status: "completed", text: WHOLE });
  });

  it("that stays has the connection replaced, and is not asked about in a storm", async () => {
    const one = tab();
    await ask(one);
    server.stream(server.last, PIECES, 6);
    const later = series("resp_1", PIECES)[8];
    for (let second = 0; second < 30; second += 1) {
      one.say({ type: "watch.events", response_id: "resp_1", events: [later] });
      await clock.pass(1000);
      // The replay of this server is empty, as if it had sent all events.
      expect(only(one).answer?.lastSeq).toBe(5);
    }
    expect(one.replaced).toBeGreaterThan(0);
    expect(one.messages.length).toBeLessThan(25);
  });

  it("before the end is noticed when the server says that it is done", async () => {
    const one = tab();
    await ask(one);
    server.stream(server.last, PIECES, 8);
    one.swallow = 99;
    server.stream(server.last, PIECES);
    one.swallow = 0;
    one.say({ type: "watch.done", response_id: "resp_1", status: "completed" });
    await flushPromises();
    expect(only(one).answer).toMatchObject({ status: "completed", text: WHOLE });
  });
});

describe("a question that waits in the queue", () => {
  const place = (queue: unknown): object => ({ type: "response.queued", sequence_number: 1, response: { status: "queued" }, queue });

  it("shows its place until it begins, and keeps nothing of it", async () => {
    const one = tab();
    await ask(one);
    server.stream(server.last, PIECES, 2);
    expect(one.controller.placeInQueue("resp_1")).toBeNull();
    const before = only(one);
    let draws = 0;
    one.controller.onChange = () => (draws += 1);
    for (const position of [12, 3]) {
      one.say({ type: "watch.events", response_id: "resp_1", events: [place({ position, eta_s: 8.5 })] });
      expect(one.controller.placeInQueue("resp_1")).toEqual({ position, etaS: 8.5, atLeast: false });
    }
    expect(draws).toBe(2);
    expect(only(one)).toEqual(before);
    server.stream(server.last, PIECES, 3);
    expect(only(one).answer?.status).toBe("in_progress");
    expect(one.controller.placeInQueue("resp_1")).toBeNull();
    server.stream(server.last, PIECES);
    expect(only(one).answer).toMatchObject({ status: "completed", text: WHOLE });
    expect(one.warnings).toEqual([]);
  });

  it("shows no place while it is not told of changes", async () => {
    const one = tab();
    await ask(one);
    server.stream(server.last, PIECES, 2);
    one.say({ type: "watch.events", response_id: "resp_1", events: [place({ position: 3 })] });
    one.controller.onSocketClose();
    expect(one.controller.placeInQueue("resp_1")).toBeNull();
  });
});

describe("an answer that does not complete", () => {
  it("keeps its text when it is stopped", async () => {
    const one = tab();
    const id = await ask(one);
    server.stream(server.last, PIECES, 7);
    one.controller.stop(id, only(one).id);
    expect(server.cancelled).toEqual(["resp_1"]);
    server.log.set("resp_1", server.log.get("resp_1")?.slice(0, 7) ?? []);
    one.say({ type: "watch.events", response_id: "resp_1", events: [{ type: "response.incomplete", sequence_number: 7, response: { status: "cancelled" } }] });
    expect(only(one)).toMatchObject({ stopWanted: false, answer: { status: "cancelled", text: "One two " } });
  });

  it("is stopped as soon as it has an id when the wish came before", async () => {
    const one = tab();
    const id = one.controller.ask(null, "Count.", null);
    one.controller.stop(id, only(one).id);
    expect(server.cancelled).toEqual([]);
    await flushPromises();
    expect(server.cancelled).toEqual(["resp_1"]);
  });

  it("that failed can be asked for again in the same place", async () => {
    const one = tab();
    const id = await ask(one);
    server.stream(server.last, PIECES, Infinity, { type: "response.failed", error: { code: "server_error", message: "died" } });
    expect(only(one).answer).toMatchObject({ status: "failed", fault: { message: "died" } });
    one.controller.retry(id, only(one).id);
    await flushPromises();
    server.stream("resp_2", PIECES);
    expect(only(one).answer).toMatchObject({ responseId: "resp_2", status: "completed", text: WHOLE });
    expect(new Set(server.asks.map((ask) => ask.key)).size).toBe(2);
  });

  it("that the server lost keeps what had arrived and is not waited for", async () => {
    const one = tab();
    await ask(one);
    server.stream(server.last, PIECES, 7);
    one.say({ type: "watch.error", response_id: "resp_1", status: 404, error: { code: "history_lost", message: "gone" } });
    expect(only(one).answer).toMatchObject({ status: "lost", text: "One two ", fault: { code: "history_lost" } });
  });

  it("is not given up for an overloaded server: another connection is tried", async () => {
    const one = tab();
    await ask(one);
    one.say({ type: "watch.error", response_id: "resp_1", status: 503, error: { code: "overloaded", message: "later" } });
    expect(only(one).answer?.status).toBe("queued");
    expect(one.replaced).toBe(1);
  });
});

describe("silence", () => {
  it("of a running answer has the connection replaced", async () => {
    const one = tab();
    await ask(one);
    await clock.pass(40_000);
    expect(one.replaced).toBeGreaterThanOrEqual(1);
    expect(one.replaced).toBeLessThanOrEqual(2);
  });

  it("without a running answer is only silence", async () => {
    const one = tab();
    await ask(one);
    server.stream(server.last, PIECES);
    await clock.pass(120_000);
    expect(one.replaced).toBe(0);
  });
});

describe("two tabs", () => {
  it("show the same answer, each from its own watching", async () => {
    const one = tab("a");
    const two = tab("b");
    const id = await ask(one);
    await flushPromises();
    server.stream(server.last, PIECES, 7);
    await clock.pass(400);
    for (const each of [one, two]) expect(each.messages).toContainEqual({ type: "watch", response_id: "resp_1" });
    expect(only(two).answer?.text).toBe("One two ");
    server.stream(server.last, PIECES);
    for (const each of [one, two]) expect(each.controller.get(id)?.turns[0]?.answer).toMatchObject({ status: "completed", text: WHOLE });
  });

  it("that both ask at once keep both questions", async () => {
    const one = tab("a");
    const two = tab("b");
    const id = await ask(one);
    server.stream(server.last, PIECES);
    one.controller.ask(id, "From a", null);
    two.controller.ask(id, "From b", null);
    await flushPromises();
    await clock.pass(1000);
    for (const each of [one, two]) expect(each.controller.get(id)?.turns.map((turn) => turn.question).sort()).toEqual(["Count.", "From a", "From b"]);
  });

  it("that hear of each other late still keep what both did", async () => {
    const one = tab("a");
    const two = tab("b");
    const id = await ask(one);
    server.stream(server.last, PIECES);
    storage.hold();
    one.controller.ask(id, "From a", null);
    await flushPromises();
    two.controller.ask(id, "From b", null);
    await flushPromises();
    expect(conversationIn(id).turns.map((turn) => turn.question).sort()).toEqual(["Count.", "From a", "From b"]);
    storage.release();
    for (const each of [one, two]) expect(each.controller.get(id)?.turns).toHaveLength(3);
  });

  it("mend what an older write of another tab took out of the store", async () => {
    const one = tab("a");
    const id = await ask(one);
    const old = storage.records.get(id) as string;
    server.stream(server.last, PIECES);
    one.controller.ask(id, "From a", null);
    await flushPromises();
    const two = storage.tab();
    two.write(JSON.parse(old) as Conversation);
    await clock.pass(1000);
    expect(conversationIn(id).turns).toHaveLength(2);
  });

  it("do not bring back what another one deleted a moment ago", async () => {
    const one = tab("a");
    const two = tab("b");
    const id = await ask(one);
    storage.hold();
    two.controller.remove(id);
    server.stream(server.last, PIECES);
    await clock.pass(1000);
    expect(storage.records.size).toBe(0);
    expect(one.controller.list()).toEqual([]);
  });

  it("agree that a conversation is deleted, also while it runs", async () => {
    const one = tab("a");
    const two = tab("b");
    const id = await ask(one);
    await flushPromises();
    two.controller.remove(id);
    server.stream(server.last, PIECES);
    await clock.pass(1000);
    expect(one.controller.list()).toEqual([]);
    expect(storage.records.size).toBe(0);
  });
});

describe("the reader is told", () => {
  it("that the engine warms up, only while a question waits for it", async () => {
    server.engineState = { state: "loading", detail: "" };
    const one = tab();
    await ask(one);
    expect(one.controller.engine).toEqual(server.engineState);
    server.stream(server.last, PIECES);
    await clock.pass(6000);
    expect(one.controller.engine).toBeNull();
  });

  it("when the browser has no room left", async () => {
    storage.full = true;
    const one = tab();
    await ask(one);
    expect(one.controller.popStorageFull()).toBe(true);
    server.stream(server.last, PIECES);
    expect(only(one).answer?.text).toBe(WHOLE);
  });

  it("nothing of a drain, which is handed to the watch socket", () => {
    const one = tab();
    one.say({ type: "watch.draining", after_ms: 900 });
    expect(one.drains).toEqual([900]);
  });

  it("nothing of a credential that is about to expire, which is handed to the watch socket", () => {
    const one = tab();
    one.say({ type: "auth_expiring", after_ms: 60_000 });
    one.say({ type: "auth_renewed", expires_at: 2_000_000_000 });
    one.say({ type: "auth_refused", status: 401, error: { code: "invalid_api_key", message: "no" } });
    expect([one.expiries, one.warnings]).toEqual([1, []]);
  });
});
