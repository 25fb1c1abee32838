/* Events of the protocol, for tests. */

import { readEvent, type ResponseEvent } from "../src/core/protocol";
import RECORDED from "./recorded.json";

export type Raw = Record<string, unknown> & { type: string; sequence_number: number };

export interface Ending {
  type?: "response.completed" | "response.incomplete" | "response.failed";
  status?: string;
  reason?: string;
  error?: { code: string; message: string };
  /** The answer can be continued. */
  continues?: boolean;
}

/** All events of one background response whose text arrives in these pieces. */
export function series(responseId: string, pieces: string[], ending: Ending = {}): Raw[] {
  const text = pieces.join("");
  const type = ending.type ?? "response.completed";
  const bodies = [
    { type: "response.created", response: { id: responseId, status: "queued" } },
    { type: "response.queued", response: { id: responseId, status: "queued" } },
    { type: "response.in_progress", response: { id: responseId, status: "in_progress" } },
    { type: "response.output_item.added", output_index: 0 },
    { type: "response.content_part.added", output_index: 0 },
    ...pieces.map((delta) => ({ type: "response.output_text.delta", delta, logprobs: [] })),
    { type: "response.output_text.done", text },
    { type: "response.content_part.done" },
    { type: "response.output_item.done" },
    {
      type,
      response: {
        id: responseId,
        status: ending.status ?? type.slice("response.".length),
        model: "test-model",
        usage: { input_tokens: 4, output_tokens: pieces.length, total_tokens: 4 + pieces.length },
        incomplete_details: ending.reason === undefined ? null : { reason: ending.reason },
        error: ending.error ?? null,
        ...(ending.continues === true ? { continue: true } : {}),
      },
    },
  ];
  return bodies.map((body, sequence_number) => ({ ...body, sequence_number }));
}

export function parse(raw: Raw): ResponseEvent {
  const event = readEvent(raw);
  if (event === null) throw new Error(`unreadable ${JSON.stringify(raw)}`);
  return event;
}

/** All events of a response from the services, recorded by `python -m tests.support.page_events`. */
export function recorded(name: keyof typeof RECORDED): Raw[] {
  return RECORDED[name] as Raw[];
}
