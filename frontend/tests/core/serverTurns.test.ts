import { expect, it } from "vitest";
import { toMetadata } from "../../src/core/attachments";
import { chain, newConversation, visibleTurns } from "../../src/core/conversation";
import { messageText } from "../../src/core/reading";
import { withRows, readRow, type Row } from "../../src/core/serverTurns";

function row(id: string, parent: string | null, question: string | null, text: string | null, extra: object = {}): Row {
  const output = [{ type: "message", content: [{ type: "output_text", text }] }];
  const response = text === null ? null : { id, status: "completed", output, model: "m", ...extra };
  const input = question === null ? [] : [{ type: "message", role: "user", content: [{ type: "input_text", text: question }] }];
  return readRow({ id, parent, created_at: 100, input, response }) as Row;
}

function questions(...rows: Row[]): string[] {
  const parents = new Map(rows.map(({ id, parent }) => [id, parent]));
  return visibleTurns(withRows(newConversation("c", 1), rows, parents)).flatMap((turn) => [turn.question, messageText(chain(turn))]);
}

it("reads turns of other clients", () => {
  expect(questions(row("r1", null, "One?", "1"), row("r2", "r1", "Two?", "2"))).toEqual(["One?", "1", "Two?", "2"]);
});

it("passes over what is gone", () => {
  expect(questions(row("r1", null, "One?", "1"), row("r2", "r1", null, null), row("r3", "r2", "Three?", "3"))).toEqual(["One?", "1", "Three?", "3"]);
});

it("reads added messages as questions and answers", () => {
  const added = readRow({
    id: "n1",
    parent: null,
    created_at: 1,
    response: null,
    input: [
      { type: "message", role: "developer", content: "Be brief." },
      { type: "message", role: "user", content: "One?" },
      { type: "message", role: "assistant", content: [{ type: "output_text", text: "1" }] },
      { type: "message", role: "user", content: "Two?" },
      { type: "message", role: "assistant", content: "2" },
      { type: "message", role: "user", content: "Open?" },
    ],
  }) as Row;
  expect(questions(added, row("r1", "n1", "Three?", "3"))).toEqual(["One?", "1", "Two?", "2", "Open?", "", "Three?", "3"]);
});

it("joins what continues an answer with it", () => {
  const cut = row("r1", null, "One?", "a ", { status: "incomplete", continue: true });
  expect(questions(cut, row("r2", "r1", null, "b"))).toEqual(["One?", "a b"]);
});

it("gives a second response that names the same turn a turn of its own", () => {
  const response = { metadata: { turn: "turn-of-one-tab", asked: "100000" } };
  const parents = new Map([["r1", null], ["r2", null]]);
  const conversation = withRows(newConversation("c", 1), [row("r1", null, "One?", "1", response), row("r2", null, "One?", "other", response)], parents);
  expect(conversation.turns.map(({ id }) => id).sort()).toEqual(["r2", "turn-of-one-tab"]);
});

it("believes no clock that is far off", () => {
  const [near, far] = [{ metadata: { asked: "99000" } }, { metadata: { asked: "99999999999999" } }];
  const conversation = withRows(newConversation("c", 1), [row("r1", null, "One?", "1", near), row("r2", "r1", "Two?", "2", far)], new Map([["r1", null], ["r2", "r1"]]));
  expect(conversation.turns.map(({ askedAt }) => askedAt)).toEqual([99_000, 100_000]);
});

it("has what was shown with a question", () => {
  const row = readRow({
    id: "r1",
    parent: null,
    created_at: 1,
    input: [{ role: "user", content: [{ type: "input_image", file_id: "file_1" }, { type: "input_file", file_id: "file_2", filename: "a.txt" }, { type: "input_image", image_url: "data:," }, { type: "input_text", text: "What is it?" }] }],
    response: { id: "r1", status: "completed", output: [] },
  }) as Row;
  const [turn] = withRows(newConversation("c", 1), [row], new Map([["r1", null]])).turns;
  expect(turn).toMatchObject({ question: "What is it?", attachments: [{ fileId: "file_1", kind: "image" }, { fileId: "file_2", kind: "file", name: "a.txt" }] });
});

it("has what this page put before a question, and not its words", () => {
  const files = [
    { fileId: "file_1", name: "a.png", kind: "image" as const, bytes: 5, expiresAt: 6 },
    { fileId: "file_2", name: "b.txt", kind: "file" as const, bytes: 7, expiresAt: 8 },
  ];
  const row = readRow({
    id: "r1",
    parent: null,
    created_at: 1,
    input: [{ role: "user", content: [{ type: "input_image", image_url: "data:," }, { type: "input_text", text: "File b.txt:\nWords.\n" }, { type: "input_text", text: "What is it?" }] }],
    response: { id: "r1", status: "completed", output: [], metadata: { turn: "turn-of-one-tab", ...toMetadata(files) } },
  }) as Row;
  const [turn] = withRows(newConversation("c", 1), [row], new Map([["r1", null]])).turns;
  expect(turn).toMatchObject({ question: "What is it?", attachments: files });
});

it("says nothing of what a file says that another client sent", () => {
  const row = readRow({
    id: "r1",
    parent: null,
    created_at: 1,
    input: [{ role: "user", content: [{ type: "input_text", text: "What is it?" }, { type: "input_text", text: "File b.txt:\nWords.\n", filename: "b.txt" }] }],
    response: { id: "r1", status: "completed", output: [] },
  }) as Row;
  const [turn] = withRows(newConversation("c", 1), [row], new Map([["r1", null]])).turns;
  expect(turn).toMatchObject({ question: "What is it?" });
});

it("is the same however often it is read", () => {
  const rows = [row("r1", null, "One?", "1"), row("r2", "r1", "Two?", "2")];
  const parents = new Map(rows.map(({ id, parent }) => [id, parent]));
  const once = withRows(newConversation("c", 1), rows, parents);
  expect(withRows(once, rows, parents)).toEqual(once);
});

it.each([null, 3, {}, { id: "x" }, { id: "x", created_at: "1" }, { id: "x", created_at: 1, parent: 3 }])("finds no row in %j", (value) => expect(readRow(value)).toBeNull());
