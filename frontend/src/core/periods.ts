/* The list of conversations, by when they were last used. */

import { lastUsed, type Conversation } from "./conversation";

export type Period = "pinned" | "today" | "yesterday" | "week" | "older";

export interface Group {
  readonly period: Period;
  readonly conversations: readonly Conversation[];
}

const ORDER: readonly Period[] = ["pinned", "today", "yesterday", "week", "older"];

/** Groups that have conversations, the latest first; the order within them is kept. */
export function byPeriod(conversations: readonly Conversation[], now: number): Group[] {
  const found = new Map<Period, Conversation[]>();
  for (const each of conversations) {
    const period = periodOf(each, now);
    const group = found.get(period);
    if (group === undefined) found.set(period, [each]);
    else group.push(each);
  }
  return ORDER.flatMap((period) => {
    const group = found.get(period);
    return group === undefined ? [] : [{ period, conversations: group }];
  });
}

function periodOf(conversation: Conversation, now: number): Period {
  if (conversation.label.pinned) return "pinned";
  const used = lastUsed(conversation);
  const day = (back: number): number => {
    const at = new Date(now);
    return new Date(at.getFullYear(), at.getMonth(), at.getDate() - back).getTime(); // days differ in length
  };
  if (used >= day(0)) return "today";
  if (used >= day(1)) return "yesterday";
  return used >= day(7) ? "week" : "older";
}
