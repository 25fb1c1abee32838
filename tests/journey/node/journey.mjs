// The official openai Node SDK, unmodified. Prints one JSON line with what it saw; the Python test judges it.
import OpenAI from "openai";
import { ResponsesWS } from "openai/resources/responses/ws";

const [baseURL, apiKey, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const TERMINAL = ["response.completed", "response.incomplete", "response.failed"];
const out = {};

function fold(events) {
  return {
    types: events.map((e) => e.type),
    numbers: events.map((e) => e.sequence_number),
    lanes: [...new Set(events.map((e) => e.stream_id ?? null))],
    text: events.filter((e) => e.type === "response.output_text.delta").map((e) => e.delta).join(""),
    final: events.at(-1).response,
  };
}

{
  const ws = new ResponsesWS(client);
  const events = [];
  ws.send({ type: "response.create", stream_id: "main", model, store: false, input: "Say hello.", max_output_tokens: 30 });
  for await (const record of ws) {
    if (record.type === "error") throw record.error;
    if (record.type !== "message") continue;
    events.push(record.message);
    if (TERMINAL.includes(record.message.type)) break;
  }
  ws.close();
  out.websocket = fold(events);
}
{
  const events = [];
  for await (const event of await client.responses.create({ model, input: "Say hello.", stream: true, max_output_tokens: 30 })) events.push(event);
  out.sse = fold(events);
  const rest = [];
  const after = 4;
  for await (const event of await client.responses.retrieve(events[0].response.id, { stream: true, starting_after: after })) rest.push(event);
  out.resumed = { numbers: rest.map((e) => e.sequence_number), expected: events.slice(after + 1).map((e) => e.sequence_number) };
  out.retrieved = (await client.responses.retrieve(events[0].response.id)).output_text;
}
{
  const background = await client.responses.create({ model, input: "Count to a thousand in words.", background: true, max_output_tokens: 1500 });
  out.cancelled = (await client.responses.cancel(background.id)).status;
}
{
  const chunks = [];
  const stream = await client.chat.completions.create({
    model, messages: [{ role: "user", content: "Say hello." }], stream: true, max_tokens: 30, stream_options: { include_usage: true },
  });
  for await (const chunk of stream) chunks.push(chunk);
  out.chat = { text: chunks.map((c) => c.choices[0]?.delta?.content ?? "").join(""), usage: chunks.at(-1).usage };
}
try {
  await client.responses.retrieve("resp_unknown");
} catch (e) {
  out.unknown = { name: e.constructor.name, status: e.status };
}
console.log(JSON.stringify(out));
