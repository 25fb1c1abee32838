import { afterEach, describe, expect, it } from "vitest";
import { apply, newAnswer, type Answer } from "../../src/core/answer";
import { withChoice, newConversation, newTurn, withTurn, type Conversation, type Turn } from "../../src/core/conversation";
import { asJson, asMarkdown } from "../../src/core/export";
import { useLanguage } from "../../src/core/words";
import { parse, recorded, series, type Ending } from "../events";

const NOON = Date.UTC(2026, 10, 26, 12, 0, 59);

afterEach(() => useLanguage("en"));

function answer(id: string, text: string, ending?: Ending): Answer {
  return series(id, [text], ending).reduce((current, raw) => apply(current, parse(raw), null).answer, newAnswer(id));
}

function foldRecording(name: Parameters<typeof recorded>[0]): Answer {
  return recorded(name).reduce((current, raw) => apply(current, parse(raw), null).answer, newAnswer(name));
}

function turn(id: string, parent: string | null, question: string, answer: Answer | null, more: Partial<Turn> = {}): Turn {
  return { ...newTurn(id, parent, question, "test-model", "tab", NOON), phase: "accepted", answer: answer, ...more };
}

function conversation(...turns: Turn[]): Conversation {
  return turns.reduce(withTurn, newConversation("c1", NOON));
}

function json(of: Conversation): Record<string, unknown> {
  return JSON.parse(asJson(of)) as Record<string, unknown>;
}

const TEXT = "# Not ours\n\n* a  \n* b\t\n\n<b>é</b> \\(x\\) 🌧\r\nend ";

describe("Markdown", () => {
  it("has the questions and answers on show, with models and times", () => {
    const file = conversation(turn("1", null, "Why does\nit rain?", answer("r1", TEXT)), turn("2", "1", "And snow?", answer("r2", "Cold.")));
    expect(asMarkdown(file)).toBe(
      "# Why does it rain?\n\n" +
        `## Question\n\n*2026-11-26 12:00 UTC*\n\n> Why does\n> it rain?\n\n## Answer\n\n*test-model*\n\n${TEXT}\n\n` +
        "## Question\n\n*2026-11-26 12:00 UTC*\n\n> And snow?\n\n## Answer\n\n*test-model*\n\nCold.\n",
    );
  });

  it("has one version of each question: the one on show", () => {
    const [first, second] = [turn("1", null, "old", answer("r1", "Old.")), turn("2", null, "new", answer("r2", "New."))];
    const file = conversation(first, second);
    expect(asMarkdown(file)).toContain("New.");
    expect(asMarkdown(file)).not.toContain("Old.");
    expect(asMarkdown(withChoice(file, first, NOON))).toContain("Old.");
  });

  it("reads an answer that was continued as one, and says how it ended", () => {
    const cut = answer("r1", "One tw", { type: "response.incomplete", reason: "max_output_tokens" });
    const more = answer("r2", "o three", { type: "response.incomplete", reason: "max_output_tokens" });
    const file = asMarkdown(conversation(turn("1", null, "count", more, { before: [cut] })));
    expect(file).toContain("\n\nOne two three\n\n*Cut off: the length limit was reached.*\n");
  });

  it("leaves reasoning out, and has calls as code", () => {
    const file = conversation(turn("1", null, "do", foldRecording("items")), turn("2", "1", "more", foldRecording("custom")));
    const turns = json(file)["turns"] as { answers: { items: { type: string; text: string; name?: string }[] }[] }[];
    const items = turns.flatMap(({ answers }) => answers.flatMap((each) => each.items));
    for (const { type, text, name } of items) {
      if (type === "reasoning") expect(asMarkdown(file)).not.toContain(text);
      else expect(asMarkdown(file)).toContain(text);
      if (type === "function") expect(asMarkdown(file)).toContain(`*Call of ${name}*\n\n\`\`\`json\n${text}\n\`\`\``);
    }
    for (const type of ["reasoning", "message", "function", "custom"]) expect(items.map((each) => each.type)).toContain(type);
  });

  it.each([
    ["```js\nlet a", "```js\nlet a\n```"],
    ["~~~~\nlet a\n", "~~~~\nlet a\n~~~~"],
    ["- ```js\n  let a", "- ```js\n  let a\n  ```"],
    ["> ```\n> let a", "> ```\n> let a\n> ```"],
    ["```\na\n```\nb `", "```\na\n```\nb `"],
    ["a\n```", "a\n```\n```"],
  ])("ends a block of code that %j leaves open", (text, closing) => {
    const cut = answer("r1", text, { type: "response.incomplete", reason: "max_output_tokens" });
    const file = asMarkdown(conversation(turn("1", null, "q", cut)));
    expect(file).toContain(`\n\n${closing}\n\n*Cut off`);
  });

  it("keeps what looks like a heading in a question within it, and a question without an answer", () => {
    const file = asMarkdown(conversation(turn("1", null, "# mine\n\n> a", null, { phase: "sending" })));
    expect(file).toBe("# mine > a\n\n## Question\n\n*2026-11-26 12:00 UTC*\n\n> # mine\n>\n> > a\n");
  });

  it("names what went with a question", () => {
    const [photo, notes] = ["photo.png", "notes.txt"].map((name, place) => ({ fileId: `file-${place}`, name, kind: "file" as const, bytes: 5, expiresAt: 0 }));
    if (photo === undefined || notes === undefined) throw new Error("no files");
    const file = conversation(turn("1", null, "Look", null, { attachments: [photo, notes] }));
    expect(asMarkdown(file)).toContain("> Look\n>\n> *photo.png*\n> *notes.txt*\n");
    expect(json(file)["turns"]).toMatchObject([{ attachments: [{ file_id: "file-0", name: "photo.png", type: "file", bytes: 5 }, {}] }]);
  });

  it("speaks the language in use", async () => {
    await useLanguage("de");
    expect(asMarkdown(conversation(turn("1", null, "q", answer("r1", "a"))))).not.toContain("Question");
  });

  it("of an empty one is its title", () => {
    expect(asMarkdown(newConversation("c1", NOON))).toBe("# New chat\n");
  });
});

describe("JSON", () => {
  it("has every version, which of them are shown, and texts to the letter", () => {
    const file = json(conversation(turn("1", null, "old", answer("r1", TEXT)), turn("2", null, "new", answer("r2", "New."))));
    expect(file).toMatchObject({ format: "tailrace.conversation", version: 1, id: "c1", title: "new", created_at: "2026-11-26T12:00:59.000Z", shown: ["2"] });
    expect(file["turns"]).toMatchObject([
      { id: "1", follows: null, question: "old", model: "test-model", state: "accepted", answers: [{ response_id: "r1", status: "completed", items: [{ type: "message", text: TEXT }] }] },
      { id: "2", follows: null, question: "new", asked_at: "2026-11-26T12:00:59.000Z", answers: [{ usage: { input_tokens: 4, output_tokens: 1 } }] },
    ]);
  });

  it("has nothing of a question that was taken back", () => {
    const file = asJson(conversation(turn("1", null, "kept", answer("r1", "a")), turn("2", "1", "secret", null, { phase: "withdrawn" })));
    expect(file).not.toContain("secret");
    expect(file).toContain("kept");
  });
});
