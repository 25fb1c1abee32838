/* The compact form of events on a watch socket (docs/protocol.md, section 6): messages of
   `tailrace.v2` become messages of `tailrace.v1`. The meaning of a text depends on the messages
   before it. So an invalid message ends its watch: the number of the watch has no meaning until the
   server announces it again, and the watchlist notices the silence. */

interface Watch {
  readonly responseId: string;
  /** sequence_number of the last event. */
  seq: number;
  /** The last delta that came as an object; null before the first. */
  lastDelta: Fields | null;
}

/** The watches of one socket, by number. */
export type Watches = Map<number, Watch>;

type Fields = Record<string, unknown>;

/** A compact message in the form of `tailrace.v1`; another message unchanged. Null: the message is
    invalid. */
export function expand(message: unknown, watches: Watches): unknown {
  if (Array.isArray(message)) {
    const [number, ...entries] = message as unknown[];
    const watch = typeof number === "number" ? watches.get(number) : undefined;
    return watch === undefined ? null : expandEntries(entries, number as number, watch, watches);
  }
  if (!isObject(message) || message["type"] !== "watch.events" || !("number" in message)) return message;
  const { number, response_id: responseId, events } = message;
  if (!isCount(number)) return null;
  watches.delete(number);
  if (typeof responseId !== "string" || !Array.isArray(events)) return null;
  return expandEntries(events, number, { responseId, seq: -1, lastDelta: null }, watches);
}

function expandEntries(entries: unknown[], number: number, watch: Watch, watches: Watches): Fields | null {
  const events: Fields[] = [];
  for (const entry of entries) {
    const event = expandEntry(entry, watch);
    if (event === null) {
      watches.delete(number);
      return null;
    }
    events.push(event);
  }
  watches.set(number, watch);
  return { type: "watch.events", response_id: watch.responseId, events };
}

function expandEntry(entry: unknown, watch: Watch): Fields | null {
  if (typeof entry === "string") {
    if (watch.lastDelta === null) return null;
    watch.seq += 1;
    return { ...watch.lastDelta, sequence_number: watch.seq, delta: entry };
  }
  if (!isObject(entry) || !isCount(entry["sequence_number"])) return null;
  watch.seq = entry["sequence_number"];
  if (String(entry["type"]).endsWith(".delta")) watch.lastDelta = entry;
  return entry;
}

function isObject(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isCount(value: unknown): value is number {
  return typeof value === "number" && Number.isInteger(value) && value >= 0;
}
