import { describe, expect, it } from "vitest";
import { apply, newAnswer, type Answer } from "../../src/core/answer";
import { parse, recorded, type Raw } from "../events";
import type { Attachment } from "../../src/core/attachments";
import { contextOf, wholeContext } from "../../src/core/context";
import * as conversations from "../../src/core/conversation";
import { readConversation } from "../../src/core/storedConversation";
import type { Conversation, Turn } from "../../src/core/conversation";
import { DEFAULT_SETTINGS } from "../../src/core/settings";

function answerOf(id: string, text: string, status: Answer["status"] = "completed"): Answer {
  return { ...newAnswer(id), lastSeq: 9, status, text };
}

function turn(id: string, changes: Partial<Turn> = {}): Turn {
  return { ...conversations.newTurn(id, id === "1" ? null : String(Number(id) - 1), `question ${id}`, null, "tab", Number(id)), phase: "accepted", ...changes };
}

function conversation(...turns: Turn[]): Conversation {
  return { ...conversations.newConversation("c", 1), turns };
}

/** A repeatable stream of choices. */
function chooser(seed: number): <T>(from: readonly T[]) => T {
  let state = seed;
  return (from) => {
    state = (state * 1103515245 + 12345) % 2147483648;
    return from[Math.floor((state / 2147483648) * from.length)] as (typeof from)[number];
  };
}

/** A random state of a turn, as tabs that share it may see it. */
function anyTurn(choose: <T>(from: readonly T[]) => T, id: string): Turn {
  const attempt = choose([1, 2]);
  const lastSeq = choose([-1, 3, 7]);
  const answer = choose([null, { ...newAnswer(`r${attempt}`), lastSeq, text: "x".repeat(lastSeq + 1), status: choose(["queued", "in_progress"] as const) }]);
  const isEnded = answer !== null && choose([false, false, true]);
  // The second attempt continues the first answer. Another tab may have its first word.
  const cut = { ...newAnswer("r0"), lastSeq: 9, status: "incomplete" as const, text: "x", firstAt: choose([null, 1, 2]) };
  return turn(id, {
    attempt,
    revision: answer === null ? choose([0, 1]) : 0,
    tab: choose(["a", "b"]),
    stopWanted: choose([false, true]),
    before: attempt === 2 ? [cut] : [],
    phase: answer === null ? "sending" : "accepted",
    // A response has one end, and one status at each event.
    answer: isEnded ? { ...answer, lastSeq: 9, status: "completed", text: "x".repeat(10) } : answer === null ? null : { ...answer, status: lastSeq < 3 ? "queued" : "in_progress" },
  });
}

function anyConversation(choose: <T>(from: readonly T[]) => T): Conversation {
  const turns = ["1", "2", "3"].filter(() => choose([true, true, false])).map((id) => anyTurn(choose, id));
  const settings = { ...DEFAULT_SETTINGS, temperature: choose([null, 0.5, 1]), at: choose([0, 1]) };
  return { ...conversation(...turns), settings };
}

describe("joining what tabs know", () => {
  it("does not depend on order, grouping or repetition", () => {
    for (let seed = 1; seed <= 400; seed += 1) {
      const choose = chooser(seed);
      const [a, b, c] = [anyConversation(choose), anyConversation(choose), anyConversation(choose)];
      const { join } = conversations;
      expect(join(a, b)).toEqual(join(b, a));
      expect(join(join(a, b), c)).toEqual(join(a, join(b, c)));
      expect(join(a, a)).toEqual(a);
    }
  });

  it("never loses a turn, nor progress", () => {
    for (let seed = 1; seed <= 200; seed += 1) {
      const choose = chooser(seed);
      const [a, b] = [anyConversation(choose), anyConversation(choose)];
      const union = conversations.join(a, b);
      for (const turn of [...a.turns, ...b.turns]) {
        const record = union.turns.find((other) => other.id === turn.id) as Turn;
        expect(record.attempt).toBeGreaterThanOrEqual(turn.attempt);
        if (record.attempt === turn.attempt && turn.answer !== null) expect(record.answer?.lastSeq).toBeGreaterThanOrEqual(turn.answer.lastSeq);
      }
      if (conversations.knowsMore(a, b)) expect(union).not.toEqual(b);
    }
  });
});

describe("a question continues", () => {
  it("the nearest earlier answer that has an end worth continuing", () => {
    const talk = conversation(
      turn("1", { answer: answerOf("r1", "first") }),
      turn("2", { answer: answerOf("r2", "half", "cancelled") }),
      turn("3", { answer: answerOf("r3", "", "cancelled") }),
      turn("4", { answer: answerOf("r4", "oops", "failed") }),
      turn("5", { phase: "unsent" }),
      turn("6"),
    );
    expect(contextOf(talk, "6")).toEqual({ input: "question 6", previousResponseId: "r2" });
    expect(contextOf(talk, "2")).toEqual({ input: "question 2", previousResponseId: "r1" });
    expect(contextOf(talk, "1")).toEqual({ input: "question 1", previousResponseId: null });
    expect(wholeContext(talk, "6").map((message) => message.content)).toEqual(["question 1", "first", "question 2", "half", "question 6"]);
  });
});

describe("a question behind calls of tools", () => {
  const events = { function: recorded("items"), custom: recorded("custom") };
  const fold = (raws: readonly Raw[]) => raws.reduce((before, raw) => apply(before, parse(raw), null).answer, newAnswer("r1"));

  it.each(["function", "custom"] as const)("says of each call of a %s that it was not run", (kind) => {
    const ids = events[kind].flatMap(({ type, item }) => {
      const id = (item as { call_id?: string } | undefined)?.call_id;
      return type === "response.output_item.added" && id !== undefined ? [id] : [];
    });
    expect(ids.length).toBeGreaterThan(0);
    const talk = conversation(turn("1", { answer: fold(events[kind]) }), turn("2"));
    const { input, previousResponseId } = contextOf(talk, "2");
    expect(previousResponseId).toBe("r1");
    expect(input).toEqual([
      ...ids.map((id) => ({ type: `${kind === "custom" ? "custom_tool" : kind}_call_output`, call_id: id, output: expect.stringContaining("not run") as string })),
      { role: "user", content: "question 2" },
    ]);
  });

  it("says nothing of those of an answer that was cut short", () => {
    const talk = conversation(turn("1", { answer: { ...fold(events.function), status: "cancelled" } }), turn("2"));
    expect(contextOf(talk, "2")).toEqual({ input: "question 2", previousResponseId: "r1" });
  });

  it("tells what was said where the ids of calls are not known", () => {
    const answer = fold(events.function);
    const older = { ...answer, items: answer.items.map(({ kind, at, name, state, left }) => ({ kind, at, name, state, left })) };
    for (const unknown of [older, { ...answer, more: 1 }]) {
      const talk = conversation(turn("1", { answer: unknown }), turn("2"));
      expect(contextOf(talk, "2")).toEqual({ input: wholeContext(talk, "2"), previousResponseId: null });
    }
  });
});

describe("a question that is told with all that was said", () => {
  it("leaves out reasoning and calls, which were not said to the reader", () => {
    const answer = recorded("items").reduce((before, raw) => apply(before, parse(raw), null).answer, newAnswer("r1"));
    const talk = conversation(turn("1", { answer }), turn("2"));
    expect(wholeContext(talk, "2").map((message) => message.content)).toEqual(["question 1", "Let me < see.\n\nSo.", "question 2"]);
  });
});

describe("what goes with a question", () => {
  const file = (fileId: string, expiresAt: number): Attachment => ({ fileId, name: "notes.txt", kind: "file", bytes: 5, expiresAt });
  const parts = (fileId: string, text: string): object[] => [
    { type: "input_file", file_id: fileId },
    { type: "input_text", text },
  ];

  it("is sent with it, and not again with what follows", () => {
    const talk = conversation(turn("1", { attachments: [file("f1", 0)], answer: answerOf("r1", "one") }), turn("2"));
    expect(contextOf(talk, "1").input).toEqual([{ role: "user", content: parts("f1", "question 1") }]);
    expect(contextOf(talk, "2")).toEqual({ input: "question 2", previousResponseId: "r1" });
  });

  it("is sent behind what became of calls", () => {
    const answer = recorded("custom").reduce((before, raw) => apply(before, parse(raw), null).answer, newAnswer("r1"));
    const talk = conversation(turn("1", { answer: answer }), turn("2", { attachments: [file("f2", 0)] }));
    expect(contextOf(talk, "2").input.at(-1)).toEqual({ role: "user", content: parts("f2", "question 2") });
  });

  it("is told with all that was said, if the server has it still", () => {
    const first = turn("1", { attachments: [file("f1", 50)], answer: answerOf("r1", "one") });
    const questionIds = (sentAt: number): unknown => wholeContext(conversation(first, turn("2", { sentAt, attachments: [file("f2", 50)] })), "2").map(({ content }) => content);
    expect(questionIds(49)).toEqual([parts("f1", "question 1"), "one", parts("f2", "question 2")]);
    expect(questionIds(50)).toEqual(["question 1", "one", parts("f2", "question 2")]);
  });
});

describe("settings", () => {
  const talk = conversation(turn("1"));
  const changed = conversations.withSettings(talk, { ...DEFAULT_SETTINGS, temperature: 1 }, 10);

  it("that were made later hold in every tab, and are worth writing", () => {
    const other = conversations.withSettings(changed, { ...DEFAULT_SETTINGS, temperature: 0 }, 5);
    expect(other.settings).toEqual({ ...DEFAULT_SETTINGS, temperature: 0, at: 11 });
    expect(conversations.join(changed, other).settings).toEqual(other.settings);
    expect(conversations.join(other, changed).settings).toEqual(other.settings);
    expect([conversations.knowsMore(other, changed), conversations.knowsMore(changed, other)]).toEqual([true, false]);
  });

  it("of an older version of this page were the model alone", () => {
    const { settings: _, ...record } = conversation(turn("1", { model: "a" }), turn("2", { model: "b" }));
    expect(readConversation(JSON.stringify(record))?.settings).toEqual({ ...DEFAULT_SETTINGS, model: "b", at: 0 });
  });
});

describe("asking again", () => {
  it("keeps the key of a question that was never accepted, and takes another one without its oldest messages", () => {
    const unsent = turn("1", { phase: "unsent", problem: { words: "no", again: true, code: "x" } });
    expect(conversations.idempotencyKey(conversations.withResend(unsent, "tab", 5))).toBe(conversations.idempotencyKey(unsent));
    expect(conversations.idempotencyKey({ ...unsent, trimmed: true })).not.toBe(conversations.idempotencyKey(unsent));
  });
});

describe("the name of a chat without one", () => {
  it("is its first question, without the marks of Markdown, on one line, cut at 60 characters", () => {
    expect(conversations.questionTitle("  # Make\n\n**this** `bold`  ")).toBe("Make this bold");
    expect(conversations.questionTitle(`**${"x".repeat(58)}**`)).toBe("x".repeat(58));
    expect(conversations.questionTitle("many words ".repeat(1000))).toBe(`${"many words ".repeat(5)}many…`);
    expect(conversations.questionTitle(" \n")).toBe("New chat");
  });
});

describe("versions", () => {
  const first = turn("1", { answer: answerOf("r1", "one") });
  const second = turn("2", { answer: answerOf("r2", "two") });
  const third = turn("3", { answer: answerOf("r3", "three") });
  const other = turn("4", { parent: "1", question: "in other words", answer: answerOf("r4", "four") });
  const talk = conversation(first, second, third, other);
  const ids = (conversation: Conversation): string[] => conversations.visibleTurns(conversation).map(({ id }) => id);

  it("of a question stand beside each other, and the newest one is shown", () => {
    expect(ids(talk)).toEqual(["1", "4"]);
    expect(conversations.versions(talk, second).map(({ id }) => id)).toEqual(["2", "4"]);
    expect(conversations.versions(talk, other)).toBe(conversations.versions(talk, second));
    expect(conversations.versions(talk, first)).toEqual([first]);
  });

  it("that are chosen bring back all that follows them", () => {
    const before = conversations.withChoice(talk, second, 10);
    expect(ids(before)).toEqual(["1", "2", "3"]);
    expect(ids(conversations.withChoice(before, other, 11))).toEqual(["1", "4"]);
  });

  describe("by question", () => {
    const file: Attachment = { fileId: "file-1", name: "a.txt", kind: "file", bytes: 1, expiresAt: 0 };
    const again = turn("5", { parent: "1", question: "question 2", answer: answerOf("r5", "five") });
    const otherAgain = turn("6", { parent: "1", question: "in other words", answer: answerOf("r6", "six") });
    const tree = conversation(first, second, third, other, again, otherAgain);
    const questionIds = (conversation: Conversation, of: Turn): string[] => conversations.questionVersions(conversation, of).map(({ id }) => id);
    const answerIds = (conversation: Conversation, of: Turn): string[] => conversations.answerVersions(conversation, of).map(({ id }) => id);

    it("are answers to the same words, and the same words are one question", () => {
      expect(answerIds(tree, second)).toEqual(["2", "5"]);
      expect(answerIds(tree, otherAgain)).toEqual(["4", "6"]);
      expect(answerIds(tree, first)).toEqual(["1"]);
      expect(questionIds(tree, first)).toEqual(["1"]);
    });

    it("are asked with the same files", () => {
      const withFile = turn("7", { parent: "1", question: "question 2", attachments: [file] });
      const versions = conversation(first, second, withFile, { ...withFile, id: "8" });
      expect(answerIds(versions, withFile)).toEqual(["7", "8"]);
      expect(questionIds(versions, withFile)).toEqual(["2", "7"]);
    });

    it("stand for their question by the answer that was seen last, the newest one at first", () => {
      expect(questionIds(tree, second)).toEqual(["2", "6"]);
      expect(questionIds(tree, otherAgain)).toEqual(["5", "6"]);
      const choice = conversations.withChoice(conversations.withChoice(tree, second, 10), other, 11);
      expect(questionIds(choice, other)).toEqual(["2", "4"]);
      expect(questionIds(conversations.withChoice(choice, second, 12), second)).toEqual(["2", "4"]);
    });

    it("are remembered by every tab, and also where the store gives them back", () => {
      const choice = conversations.withChoice(conversations.withChoice(tree, second, 10), other, 11);
      expect(questionIds(conversations.join(tree, choice), other)).toEqual(["2", "4"]);
      expect(questionIds(readConversation(JSON.stringify(choice)) as Conversation, other)).toEqual(["2", "4"]);
    });

    it("that were taken back, or that are gone, stand for nothing", () => {
      const back = conversation(first, second, other, { ...again, phase: "withdrawn" });
      expect(answerIds(back, second)).toEqual(["2"]);
      expect(questionIds({ ...back, chosen: conversations.withChoice(tree, again, 10).chosen }, other)).toEqual(["2", "4"]);
    });

    it("another device shows are seen here, too", () => {
      const path = conversations.withPathTo(tree, second, 10);
      expect(questionIds(conversations.withPathTo(path, otherAgain, 11), otherAgain)).toEqual(["2", "6"]);
    });
  });

  it("each continue what comes before them, whatever is shown", () => {
    expect(contextOf(talk, "4")).toEqual({ input: "in other words", previousResponseId: "r1" });
    expect(contextOf(talk, "3")).toEqual({ input: "question 3", previousResponseId: "r2" });
    expect(wholeContext(talk, "3").map(({ content }) => content)).toEqual(["question 1", "one", "question 2", "two", "question 3"]);
  });

  it("that were chosen in two tabs: the latest choice holds in both", () => {
    const [a, b] = [conversations.withChoice(talk, second, 10), conversations.withChoice(talk, other, 12)];
    expect(conversations.join(a, b)).toEqual(conversations.join(b, a));
    expect(ids(conversations.join(a, b))).toEqual(["1", "4"]);
    expect(conversations.knowsMore(b, a)).toBe(true);
    expect(conversations.knowsMore(a, b), "which answer to its question was seen").toBe(true);
    expect(conversations.knowsMore(a, conversations.join(a, b))).toBe(false);
    expect(conversations.knowsMore(a, talk)).toBe(true);
  });

  it("follow what came before a question that was taken back", () => {
    const back = conversation(first, { ...second, phase: "withdrawn" }, third);
    expect(ids(back)).toEqual(["1", "3"]);
    expect(contextOf(back, "3")).toMatchObject({ previousResponseId: "r1" });
  });

  it("of an older version of this page, which kept one path, follow each other", () => {
    const record = JSON.parse(JSON.stringify(conversation(first, second, third))) as { turns: Record<string, unknown>[]; chosen?: unknown };
    for (const each of record.turns) {
      delete each["parent"];
      delete each["trimmed"];
    }
    delete record.chosen;
    const copy = readConversation(JSON.stringify(record));
    expect(copy).toEqual(conversation(first, second, third));
  });

  it("that were damaged in the store are shown without end nowhere", () => {
    const round = conversation({ ...first, parent: "2" }, second);
    expect(ids(round)).toEqual([]);
    expect(conversations.turnsBefore(round, second).map(({ id }) => id)).toEqual(["2", "1"]);
    const orphan = conversation({ ...first, parent: "9" }, second);
    expect(ids(orphan)).toEqual(["1", "2"]);
  });
});

describe("more of an answer", () => {
  const cut = { ...answerOf("r1", "One ", "incomplete"), continuable: true };

  it("is asked for by the response that was cut short, without any input", () => {
    const more = conversations.withContinuation(turn("1", { answer: cut }), "tab", 5);
    expect(more).toMatchObject({ phase: "sending", attempt: 2, answer: null, before: [cut] });
    expect(contextOf(conversation(more), "1")).toEqual({ input: [], previousResponseId: "r1" });
    expect(conversations.idempotencyKey(more)).not.toBe(conversations.idempotencyKey(conversations.withResend(turn("1", { answer: cut }), "tab", 5)));
  });

  it("is not asked for where nothing can be continued", () => {
    for (const answer of [answerOf("r1", "One."), answerOf("r1", "One", "cancelled"), answerOf("r1", "One", "failed"), { ...cut, status: "in_progress" as const }, null]) {
      const it = turn("1", { answer });
      expect(conversations.withContinuation(it, "tab", 5)).toBe(it);
    }
  });

  it.each([
    ["failed", "tw"],
    ["lost", ""],
    ["cancelled", ""],
  ] as const)("that ended as %s begins again behind what was cut short", (status, text) => {
    const failedTurn = turn("1", { attempt: 2, before: [cut], answer: answerOf("r2", text, status) });
    expect(conversations.withContinuation(failedTurn, "tab", 5)).toMatchObject({ attempt: 3, answer: null, before: [cut] });
  });

  it("is a part of what was said, and the next question goes on behind it", () => {
    const talk = conversation(turn("1", { before: [cut], answer: answerOf("r2", "two.") }), turn("2"));
    expect(contextOf(talk, "2")).toEqual({ input: "question 2", previousResponseId: "r2" });
    expect(wholeContext(talk, "2")[1]).toEqual({ role: "assistant", content: "One two." });
  });

  it("that was refused or failed leaves what was said before", () => {
    for (const changes of [{ phase: "unsent" as const }, { answer: answerOf("r2", "tw", "failed") }]) {
      const talk = conversation(turn("1", { before: [cut], ...changes }), turn("2"));
      expect(contextOf(talk, "2")).toEqual({ input: "question 2", previousResponseId: "r1" });
      expect(wholeContext(talk, "2")[1]).toEqual({ role: "assistant", content: "One " });
    }
  });
});

describe("what was stored", () => {
  it("by an older version of this page had no answers that were continued", () => {
    const { before: _, attachments: __, settings: ___, ...record } = turn("1", { answer: answerOf("r1", "text") });
    expect(readConversation(JSON.stringify({ id: "c", createdAt: 1, turns: [record] }))).toMatchObject({ ...conversation(turn("1", { answer: answerOf("r1", "text") })), settings: { at: 0 } });
  });

  it("is read back as it was", () => {
    const talk = conversation(turn("1", { answer: answerOf("r1", "text") }));
    expect(readConversation(JSON.stringify(talk))).toEqual(talk);
  });

  it.each(["", "null", "{}", "[]", '{"id":"x"}', '{"id":"x","createdAt":1,"turns":{}}', '{"id":"x","createdAt":1,"turns":[null]}', '{"id":"x","createdAt":1,"turns":[{"id":"t"}]}'])(
    "by something else is left alone: %s",
    (raw) => expect(readConversation(raw)).toBeNull(),
  );
});
