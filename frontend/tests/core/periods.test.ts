import { expect, it } from "vitest";
import { newConversation, type Conversation } from "../../src/core/conversation";
import { byPeriod } from "../../src/core/periods";

const NOW = new Date(2026, 2, 30, 9, 30).getTime(); // the day after a change to summer time in some places

function conversationAt(id: string, ...at: [number, number, number, number?]): Conversation {
  return newConversation(id, new Date(at[0], at[1], at[2], at[3] ?? 12).getTime());
}

it("groups by the reader's own days, and pinned ones first", () => {
  const all = [
    conversationAt("late", 2026, 2, 31),
    conversationAt("now", 2026, 2, 30, 0),
    conversationAt("before", 2026, 2, 29, 23),
    conversationAt("week", 2026, 2, 23, 0),
    conversationAt("old", 2026, 2, 22, 23),
    { ...conversationAt("dear", 2020, 0, 1), label: { name: "", pinned: true, at: 1 } },
  ];
  expect(byPeriod(all, NOW).map(({ period, conversations }) => [period, conversations.map(({ id }) => id)])).toEqual([
    ["pinned", ["dear"]],
    ["today", ["late", "now"]],
    ["yesterday", ["before"]],
    ["week", ["week"]],
    ["older", ["old"]],
  ]);
  expect(byPeriod([], NOW)).toEqual([]);
});
