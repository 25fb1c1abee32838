/* Parses the messages of the watch socket, once and strictly: the rest of the page uses these types
   only. An event of an unknown type still counts in its response's sequence. */

import { fields, type Fields } from "./fields";
import { expand, type Watches } from "./compactEvents";
import { readFeed, type FeedEvent } from "./feed";
import { texts } from "./words";

export type Outcome = "completed" | "incomplete" | "cancelled" | "failed";

export interface Usage {
  input: number;
  output: number;
}

export interface Fault {
  code: string;
  message: string;
}

/** The kind of an output item. `function`: the call of a function, with JSON arguments. `custom`:
    the call of a tool whose input is any text. */
export type ItemKind = "message" | "reasoning" | "function" | "custom";

/** The place of a request in the queue. */
export interface Place {
  /** The number of requests that start before it. */
  position: number;
  /** Seconds until it starts; null: not known. */
  etaS: number | null;
  /** Both values are lower bounds. */
  atLeast: boolean;
}

/** This model answers from this item on. */
export interface Segment {
  item: number;
  model: string;
}

/** The members of a Response object about the model that answers. */
export interface ServingInfo {
  /** The model that answers; null: not known yet. */
  model: string | null;
  /** The requested model, where another one writes all or a part of the answer. */
  asked: string | null;
  /** The models in order; empty where only one answers. */
  segments: readonly Segment[];
  /** The service was busy, so the answer got a lower length limit. */
  shortened: boolean;
  /** A cached answer to an equal request. */
  cached: boolean;
  /** The answer was cut short and can be continued. */
  continuable: boolean;
}

/** Only the newest item is open: `opened` begins an item, the other events change it. */
export type ResponseEvent =
  | { kind: "status"; seq: number; status: "queued" | "in_progress"; serving: ServingInfo | null }
  | { kind: "opened"; seq: number; item: ItemKind; name: string; call: string }
  | { kind: "delta"; seq: number; item: ItemKind; delta: string }
  | { kind: "text"; seq: number; item: ItemKind; text: string }
  | { kind: "closed"; seq: number; whole: boolean }
  /** The text cites this file. */
  | { kind: "cited"; seq: number; file: string }
  | { kind: "end"; seq: number; outcome: Outcome; reason: string | null; usage: Usage | null; fault: Fault | null; serving: ServingInfo | null }
  | { kind: "other"; seq: number }
  /** The current place in the queue. It repeats the number of the event before it. */
  | { kind: "place"; seq: number; place: Place };

export type Incoming =
  | { kind: "events"; responseId: string; events: ResponseEvent[] }
  | { kind: "done"; responseId: string }
  | { kind: "error"; responseId: string | null; status: number; fault: Fault }
  | { kind: "feed"; events: FeedEvent[] }
  | { kind: "draining"; afterMs: number }
  | { kind: "expiring" }
  | { kind: "renewed" };

function text(value: unknown): string | null {
  return typeof value === "string" ? value : null;
}

function count(value: unknown): number | null {
  return typeof value === "number" && Number.isInteger(value) && value >= 0 ? value : null;
}

/** Null: the message is invalid or of an unknown type. `watches`: those of the socket that received
    the message. */
export function readMessage(raw: string, watches: Watches): Incoming | null {
  let parsed: unknown;
  try {
    parsed = JSON.parse(raw);
  } catch {
    return null;
  }
  const message = fields(expand(parsed, watches));
  if (message === null) return null;
  const responseId = text(message["response_id"]);
  switch (message["type"]) {
    case "watch.events":
      return responseId === null || !Array.isArray(message["events"])
        ? null
        : { kind: "events", responseId, events: readEvents(message["events"]) };
    case "feed.events":
      return Array.isArray(message["events"]) ? { kind: "feed", events: readFeed(message["events"]) } : null;
    case "watch.done":
      return responseId === null ? null : { kind: "done", responseId };
    case "watch.error":
      return { kind: "error", responseId, status: count(message["status"]) ?? 0, fault: readFault(message["error"]) ?? { code: "unknown", message: texts().unnamedError } };
    case "watch.draining":
      return { kind: "draining", afterMs: count(message["after_ms"]) ?? 0 };
    case "auth_expiring":
      return { kind: "expiring" };
    // After a refusal the socket closes when the former credential expires. The page then requests
    // a new credential.
    case "auth_renewed":
    case "auth_refused":
      return { kind: "renewed" };
    default:
      return null;
  }
}

// An event without a valid number is left out. The numbers around it then show a gap, and the page
// requests the gap again.
function readEvents(values: unknown[]): ResponseEvent[] {
  const events: ResponseEvent[] = [];
  for (const value of values) {
    const event = readEvent(value);
    if (event !== null) events.push(event);
  }
  return events;
}

const KINDS = new Map<unknown, ItemKind>([
  ["message", "message"],
  ["reasoning", "reasoning"],
  ["function_call", "function"],
  ["custom_tool_call", "custom"],
]);
const DELTAS = new Map<unknown, ItemKind>([
  ["response.output_text.delta", "message"],
  ["response.reasoning_text.delta", "reasoning"],
  ["response.reasoning_summary_text.delta", "reasoning"],
  ["response.function_call_arguments.delta", "function"],
  ["response.custom_tool_call_input.delta", "custom"],
]);
/** Types of the events with an item's whole text, and the member that has the text. */
const WHOLE = new Map<unknown, { item: ItemKind; member: string }>([
  ["response.output_text.done", { item: "message", member: "text" }],
  ["response.reasoning_text.done", { item: "reasoning", member: "text" }],
  ["response.reasoning_summary_text.done", { item: "reasoning", member: "text" }],
  ["response.function_call_arguments.done", { item: "function", member: "arguments" }],
  ["response.custom_tool_call_input.done", { item: "custom", member: "input" }],
]);
const LONGEST_NAME = 200;
const LONGEST_CALL_ID = 64; // characters: the server's limit

export function readEvent(value: unknown): ResponseEvent | null {
  const event = fields(value);
  const seq = count(event?.["sequence_number"]);
  if (event === null || seq === null) return null;
  const deltaKind = DELTAS.get(event["type"]);
  if (deltaKind !== undefined) {
    const delta = text(event["delta"]);
    return delta === null ? null : { kind: "delta", seq, item: deltaKind, delta };
  }
  const statement = WHOLE.get(event["type"]);
  if (statement !== undefined) {
    const whole = text(event[statement.member]);
    return whole === null ? null : { kind: "text", seq, item: statement.item, text: whole };
  }
  switch (event["type"]) {
    case "response.queued":
      if ("queue" in event) return readPlace(seq, fields(event["queue"]));
      return { kind: "status", seq, status: "queued", serving: null };
    case "response.in_progress":
      return { kind: "status", seq, status: "in_progress", serving: readServingInfo(event["response"]) };
    case "response.output_item.added":
      return readItemAdded(seq, fields(event["item"]));
    case "response.output_text.annotation.added":
      return readCitation(seq, fields(event["annotation"]));
    case "response.output_item.done":
      return { kind: "closed", seq, whole: fields(event["item"])?.["status"] !== "incomplete" };
    case "response.completed":
      return readEnd(seq, event, "completed");
    case "response.failed":
      return readEnd(seq, event, "failed");
    case "response.incomplete":
      return readEnd(seq, event, "incomplete");
    default:
      return { kind: "other", seq };
  }
}

// The name of a tool in a namespace has both parts.
function readItemAdded(seq: number, item: Fields | null): ResponseEvent {
  const kind = KINDS.get(item?.["type"]);
  if (kind === undefined) return { kind: "other", seq };
  if (kind !== "function" && kind !== "custom") return { kind: "opened", seq, item: kind, name: "", call: "" };
  const names = [text(item?.["namespace"]), text(item?.["name"])].filter((name) => name !== null && name !== "");
  const call = text(item?.["call_id"]) ?? "";
  return { kind: "opened", seq, item: kind, name: names.join(".").slice(0, LONGEST_NAME), call: call.length <= LONGEST_CALL_ID ? call : "" };
}

function readCitation(seq: number, annotation: Fields | null): ResponseEvent {
  const name = annotation?.["type"] === "file_citation" ? text(annotation["filename"]) : null;
  return name === null || name === "" ? { kind: "other", seq } : { kind: "cited", seq, file: name.slice(0, LONGEST_NAME) };
}

function readPlace(seq: number, queue: Fields | null): ResponseEvent | null {
  const position = count(queue?.["position"]);
  const eta = queue?.["eta_s"];
  if (position === null) return null;
  return { kind: "place", seq, place: { position, etaS: typeof eta === "number" && eta >= 0 ? eta : null, atLeast: queue?.["at_least"] === true } };
}

function readEnd(seq: number, event: Fields, eventOutcome: Outcome): ResponseEvent {
  const response = fields(event["response"]);
  // The API has no event for cancelled responses: the event is `response.incomplete`, and `status`
  // is cancelled.
  const outcome = response?.["status"] === "cancelled" ? "cancelled" : eventOutcome;
  const input = count(fields(response?.["usage"])?.["input_tokens"]);
  const output = count(fields(response?.["usage"])?.["output_tokens"]);
  return {
    kind: "end",
    seq,
    outcome,
    reason: text(fields(response?.["incomplete_details"])?.["reason"]),
    usage: input === null || output === null ? null : { input, output },
    fault: readFault(response?.["error"]),
    serving: readServingInfo(response),
  };
}

function readServingInfo(value: unknown): ServingInfo | null {
  const response = fields(value);
  if (response === null) return null;
  const fallback = fields(response["fallback"]);
  return {
    model: modelName(response["model"]),
    asked: modelName(fallback?.["from"]),
    segments: readSegments(fallback?.["items"], startsWithSearch(response) ? 1 : 0),
    shortened: fields(response["shortened"]) !== null,
    cached: response["cached_answer"] === true,
    continuable: response["continue"] === true,
  };
}

// The call of a file search is the first output item. The page does not show it, so item numbers
// shift by one.
function startsWithSearch(response: Fields): boolean {
  const output = response["output"];
  return Array.isArray(output) && fields(output[0])?.["type"] === "file_search_call";
}

function readSegments(value: unknown, before: number): Segment[] {
  if (!Array.isArray(value)) return [];
  const segments = value.map((each: unknown) => ({ item: count(fields(each)?.["output_index"]), model: modelName(fields(each)?.["model"]) }));
  for (const segment of segments) if (segment.item !== null) segment.item = Math.max(0, segment.item - before);
  const good = segments.every(({ item, model }, place) => item !== null && model !== null && item > (segments[place - 1]?.item ?? -1));
  return good ? (segments as Segment[]) : [];
}

function modelName(value: unknown): string | null {
  const name = text(value);
  return name === null || name === "" ? null : name.slice(0, LONGEST_NAME);
}

export function readFault(value: unknown): Fault | null {
  const error = fields(value);
  if (error === null) return null;
  const message = text(error["message"]);
  return { code: text(error["code"]) ?? text(error["type"]) ?? "unknown", message: message ?? texts().unnamedError };
}
