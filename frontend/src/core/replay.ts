/* Makes an answer of a Response object: the fold of the events that the server would have sent for
   it. So an answer that is read after its end equals one that was watched. */

import { fields, type Fields } from "./fields";
import { apply, isRunning, newAnswer, type Answer } from "./answer";
import { readEvent } from "./protocol";

const ENDS = new Map<unknown, string>([
  ["completed", "response.completed"],
  ["failed", "response.failed"],
  ["incomplete", "response.incomplete"],
  ["cancelled", "response.incomplete"],
]);

/** Null: not a Response object. A running response gives a new answer, which must be watched from
    its first event. */
export function answerFromResponse(value: unknown): Answer | null {
  const response = fields(value);
  if (response === null || typeof response["id"] !== "string") return null;
  const answer = newAnswer(response["id"]);
  const end = ENDS.get(response["status"]);
  if (end === undefined) return answer;
  const output = Array.isArray(response["output"]) ? response["output"] : [];
  const events = [...output.flatMap(eventsOf), { type: end, response }];
  const whole = events.reduce<Answer>((current, event) => {
    const parsed = readEvent({ ...event, sequence_number: current.lastSeq + 1 });
    return parsed === null ? current : apply(current, parsed, null).answer;
  }, answer);
  return isRunning(whole) ? null : whole;
}

function eventsOf(value: unknown): Fields[] {
  const item = fields(value);
  if (item === null) return [];
  return [{ type: "response.output_item.added", item }, ...contents(item), { type: "response.output_item.done", item }];
}

function contents(item: Fields): Fields[] {
  switch (item["type"]) {
    case "message":
      return [...pieces(item, "response.output_text.delta"), ...citations(item)];
    case "reasoning":
      return pieces(item, "response.reasoning_text.delta");
    case "function_call":
      return [{ type: "response.function_call_arguments.delta", delta: item["arguments"] }];
    case "custom_tool_call":
      return [{ type: "response.custom_tool_call_input.delta", delta: item["input"] }];
    default:
      return [];
  }
}

function pieces(item: Fields, type: string): Fields[] {
  return parts(item).map((part) => ({ type, delta: part["text"] }));
}

function citations(item: Fields): Fields[] {
  const annotations = parts(item).flatMap((part) => (Array.isArray(part["annotations"]) ? part["annotations"] : []));
  return annotations.map((annotation: unknown) => ({ type: "response.output_text.annotation.added", annotation }));
}

function parts(item: Fields): Fields[] {
  return [item["summary"], item["content"]].flat().map(fields).filter((part) => part !== null);
}
