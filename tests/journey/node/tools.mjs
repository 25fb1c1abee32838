// The official openai Node SDK, unmodified, with tools and formats on the scripted engine. Prints one JSON line with
// what it saw; the Python test judges it.
import OpenAI from "openai";

const [baseURL, apiKey, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const metadata = { script_pace_ms: "2" };
const parameters = {
  type: "object",
  properties: { city: { type: "string" }, days: { type: "integer" } },
  required: ["city", "days"],
  additionalProperties: false,
};
const weather = { name: "weather", parameters, strict: true };
const tools = [{ type: "function", ...weather }];
const question = 'call weather {"city":"Zürich","days":3}';
const format = { type: "json_schema", name: "weather", schema: parameters, strict: true };
const out = {};

{
  const asked = await client.responses.create({ model, input: question, tools, metadata });
  const call = asked.output[0];
  const output = [{ type: "function_call_output", call_id: call.call_id, output: "sunny" }];
  const answered = await client.responses.create({ model, previous_response_id: asked.id, input: output, tools, metadata });
  out.loop = { call, text: answered.output_text };
}
{
  const stream = client.responses.stream({ model, input: `think 10\n${question}`, tools, reasoning: { effort: "low" }, metadata });
  let deltas = "";
  stream.on("response.function_call_arguments.delta", (event) => (deltas += event.delta));
  const final = await stream.finalResponse();
  out.stream = { deltas, types: final.output.map((item) => item.type), arguments: final.output.at(-1).arguments };
}
{
  const parsed = await client.responses.parse({ model, input: "json 40", text: { format }, metadata });
  out.parsed = parsed.output_parsed;
}
{
  const json_schema = { name: "weather", schema: parameters, strict: true };
  const done = await client.chat.completions.parse({
    model,
    messages: [{ role: "user", content: "json 40" }],
    response_format: { type: "json_schema", json_schema },
  });
  out.chatParsed = done.choices[0].message.parsed;
}
{
  // Its worker is killed by the Python test, which waits for the first line.
  const events = [];
  for await (const event of await client.responses.create({
    model, input: "call weather 800", tools, stream: true, max_output_tokens: 5000, metadata: { script_pace_ms: "25" },
  })) {
    events.push(event);
    if (events.filter((e) => e.type === "response.function_call_arguments.delta").length === 20) {
      process.stderr.write(`${events[0].response.id}\n`);
    }
  }
  out.taken = {
    events,
    deltas: events.filter((e) => e.type === "response.function_call_arguments.delta").map((e) => e.delta).join(""),
    arguments: events.at(-1).response.output[0].arguments,
  };
}
console.log(JSON.stringify(out));
