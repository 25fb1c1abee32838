// `openai` for JavaScript: tools, parse, the streaming helpers, runTools, the socket.
import OpenAI from "openai";
import { zodFunction, zodResponsesFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { ResponsesWS } from "openai/resources/responses/ws";
import { z } from "zod";
import { BASE, KEY, LONG_CALL, MODEL, WEATHER, check, killWorker, main, same } from "./scenarios.mjs";

const client = new OpenAI({ baseURL: BASE, apiKey: KEY, maxRetries: 0, timeout: 90_000 });
const Weather = z.object({ city: z.string() });
const Person = z.object({
  name: z.string(),
  age: z.number().int().nullable(),
  kind: z.enum(["friend", "stranger"]),
  homes: z.array(z.object({ street: z.string() })),
});
const TOOL = zodResponsesFunction({ name: "get_weather", description: "Tell the weather.", parameters: Weather });
const CHAT_TOOL = zodFunction({ name: "get_weather", description: "Tell the weather.", parameters: Weather });
const calls = (response) => response.output.filter((item) => item.type === "function_call");
const user = (content) => [{ role: "user", content }];

await main({
  "a call, its output and an answer": async () => {
    const first = await client.responses.create({ model: MODEL, input: WEATHER, tools: [TOOL] });
    const [call] = calls(first);
    same(JSON.parse(call.arguments), { city: "Paris" });
    const second = await client.responses.create({
      model: MODEL,
      previous_response_id: first.id,
      tools: [TOOL],
      input: [{ type: "function_call_output", call_id: call.call_id, output: "21 degrees" }],
    });
    check(second.output_text.includes("21 degrees"), second.output_text);
    return second.output_text;
  },
  "parse arguments": async () => {
    const response = await client.responses.parse({ model: MODEL, input: WEATHER, tools: [TOOL] });
    same(calls(response)[0].parsed_arguments, { city: "Paris" });
    return calls(response)[0].arguments;
  },
  "parse an answer": async () => {
    const format = zodTextFormat(Person, "person");
    const response = await client.responses.parse({ model: MODEL, input: "who?", text: { format } });
    check(response.output_parsed !== null, response.output_text);
    Person.parse(response.output_parsed);
    return response.output_text;
  },
  "the stream helper with a tool": async () => {
    const stream = client.responses.stream({ model: MODEL, input: WEATHER, tools: [TOOL] });
    let text = "";
    for await (const event of stream) {
      if (event.type === "response.function_call_arguments.delta") text += event.delta;
    }
    const final = await stream.finalResponse();
    same(calls(final)[0].arguments, text);
    return text;
  },
  "the stream helper with a format": async () => {
    const format = zodTextFormat(Person, "person");
    const stream = client.responses.stream({ model: MODEL, input: "who?", text: { format } });
    const final = await stream.finalResponse();
    Person.parse(final.output_parsed);
    return final.output_text;
  },
  "chat: runTools": async () => {
    const runner = client.chat.completions.runTools({
      model: MODEL,
      messages: user(WEATHER),
      tools: [
        {
          type: "function",
          function: {
            name: "get_weather",
            description: "Tell the weather.",
            parse: JSON.parse,
            parameters: { type: "object", properties: { city: { type: "string" } } },
            function: ({ city }) => `21 degrees in ${city}`,
          },
        },
      ],
    });
    const text = await runner.finalContent();
    check(text.includes("21 degrees in Paris"), text);
    return text;
  },
  "chat: parse": async () => {
    const completion = await client.chat.completions.parse({
      model: MODEL,
      messages: user("who?"),
      response_format: zodResponseFormat(Person, "person"),
    });
    Person.parse(completion.choices[0].message.parsed);
    return completion.choices[0].message.content;
  },
  "chat: streamed tool calls": async () => {
    const stream = client.chat.completions.stream({
      model: MODEL,
      messages: user(`${WEATHER}\n${WEATHER}`),
      tools: [CHAT_TOOL],
    });
    const final = await stream.finalChatCompletion();
    const found = final.choices[0].message.tool_calls.map((call) => call.function.parsed_arguments);
    same(found, [{ city: "Paris" }, { city: "Paris" }]);
    return JSON.stringify(found);
  },
  "chat: streamed format": async () => {
    const stream = client.chat.completions.stream({
      model: MODEL,
      messages: user("who?"),
      response_format: zodResponseFormat(Person, "person"),
    });
    const final = await stream.finalChatCompletion();
    Person.parse(final.choices[0].message.parsed);
    return final.choices[0].message.content;
  },
  "a socket with tools": async () => {
    const socket = new ResponsesWS(client);
    const finished = (body) =>
      new Promise((resolve, reject) => {
        socket.once("response.completed", (event) => resolve(event.response));
        socket.once("error", reject);
        socket.send({ type: "response.create", model: MODEL, tools: [TOOL], stream_id: "main", ...body });
      });
    try {
      const first = await finished({ input: WEATHER });
      const [call] = calls(first);
      const second = await finished({
        previous_response_id: first.id,
        input: [{ type: "function_call_output", call_id: call.call_id, output: "fog" }],
      });
      const text = second.output[0].content[0].text;
      check(text.includes("fog"), second);
      return text;
    } finally {
      socket.close();
    }
  },
  "a worker killed in a tool call": async () => {
    const asked = { model: MODEL, input: LONG_CALL, tools: [TOOL] };
    const quiet = await client.responses.create(asked);
    let text = "";
    const stream = client.responses.stream(asked);
    for await (const event of stream) {
      if (event.type !== "response.function_call_arguments.delta") continue;
      const before = text.length;
      text += event.delta;
      if (before <= 60 && text.length > 60) killWorker();
    }
    const final = await stream.finalResponse();
    same(text, calls(quiet)[0].arguments);
    same(calls(final)[0].arguments, text);
    return `${text.length} characters of arguments`;
  },
  "embeddings of texts and tokens": async () => {
    const input = Array.from({ length: 70 }, (_, i) => `text ${i}`);
    const found = await client.embeddings.create({ model: MODEL, input });
    const floats = await client.embeddings.create({ model: MODEL, input, encoding_format: "float" });
    same(found.data.map((each) => each.index), input.map((_, i) => i));
    same(found.data.map((each) => Array.from(each.embedding, Math.fround)), floats.data.map((each) => each.embedding));
    const tokens = await client.embeddings.create({ model: MODEL, input: [[1, 2], [3]], dimensions: 8 });
    same(tokens.data.map((each) => each.embedding.length), [8, 8]);
    return `${found.data.length} vectors of ${found.data[0].embedding.length} dimensions`;
  },
});
