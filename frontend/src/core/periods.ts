/* Groups the list of conversations by the time of their last use. */

import { lastUsed, type Conversation } from "./conversation";

export type Period = "pinned" | "today" | "yesterday" | "week" | "older";

export interface Group {
  readonly period: Period;
  readonly conversations: readonly Conversation[];
}

const ORDER: readonly Period[] = ["pinned", "today", "yesterday", "week", "older"];

/** The groups with conversations, the latest first. The order within a group does not change. */
export function byPeriod(conversations: readonly Conversation[], now: number): Group[] {
  const groups = new Map<Period, Conversation[]>();
  for (const each of conversations) {
    const period = periodOf(each, now);
    const group = groups.get(period);
    if (group === undefined) groups.set(period, [each]);
    else group.push(each);
  }
  return ORDER.flatMap((period) => {
    const group = groups.get(period);
    return group === undefined ? [] : [{ period, conversations: group }];
  });
}

function periodOf(conversation: Conversation, now: number): Period {
  if (conversation.label.pinned) return "pinned";
  const usedAt = lastUsed(conversation);
  const day = (back: number): number => {
    const at = new Date(now);
    return new Date(at.getFullYear(), at.getMonth(), at.getDate() - back).getTime(); // days differ in length
  };
  if (usedAt >= day(0)) return "today";
  if (usedAt >= day(1)) return "yesterday";
  return usedAt >= day(7) ? "week" : "older";
}
