// `openai` for JavaScript: tools, parse, the streaming helpers, runTools, the socket.
import OpenAI from "openai";
import { zodFunction, zodResponsesFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { ResponsesWS } from "openai/resources/responses/ws";
import { z } from "zod";
import { BASE, KEY, LONG_CALL, MODEL, WEATHER } from "./scenarios.mjs";
import { check, emptyRedis, killWorker, main, restartGateway, same } from "./scenarios.mjs";

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
const all = async (pages) => {
  const found = [];
  for await (const each of pages) found.push(each);
  return found;
};
const finishedOn = (socket, body) =>
  new Promise((resolve, reject) => {
    socket.once("response.completed", (event) => resolve(event.response));
    socket.once("error", reject);
    socket.send({ type: "response.create", model: MODEL, tools: [TOOL], ...body });
  });

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
    const finished = (body) => finishedOn(socket, { stream_id: "main", ...body });
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
  "a conversation in several turns": async () => {
    const made = await client.conversations.create({
      metadata: { topic: "rain" },
      items: [{ type: "message", role: "developer", content: "Be brief." }],
    });
    const asked = { model: MODEL, conversation: made.id, tools: [TOOL] };
    const first = await client.responses.create({ input: WEATHER, ...asked });
    same(first.conversation, { id: made.id });
    const [call] = calls(first);
    await restartGateway();
    const output = { type: "function_call_output", call_id: call.call_id, output: "21 degrees" };
    const second = await client.responses.stream({ input: [output], ...asked }).finalResponse();
    check(second.output_text.includes("21 degrees"), second.output_text);
    await emptyRedis();
    const socket = new ResponsesWS(client);
    try {
      const third = await finishedOn(socket, { input: "say thanks", conversation: made.id });
      same(third.output[0].content[0].text, "thanks");
    } finally {
      socket.close();
    }
    const items = await all(client.conversations.items.list(made.id, { order: "asc", limit: 2 }));
    const wanted = ["message", "message", "function_call", "function_call_output"];
    same(items.map((item) => item.type), [...wanted, "message", "message", "message"]);
    same(items.slice(0, 2).map((item) => item.role), ["developer", "user"]);
    const newest = await all(client.conversations.items.list(made.id, { limit: 3 }));
    same(newest.map((item) => item.id), items.map((item) => item.id).reverse());
    const changed = await client.conversations.update(made.id, { metadata: { topic: "sun" } });
    same((await client.conversations.retrieve(made.id)).metadata, changed.metadata);
    check((await client.conversations.delete(made.id)).deleted, "deleted");
    const error = await client.responses.create({ input: "say more", ...asked }).catch((e) => e);
    check(error instanceof OpenAI.NotFoundError, error);
    return `${items.length} items; then ${error.code}`;
  },
  "items of a conversation added and deleted": async () => {
    const asked = {
      model: MODEL,
      tools: [TOOL],
      reasoning: { effort: "low", summary: "auto" },
      include: ["reasoning.encrypted_content"],
    };
    const answer = await client.responses.create({ input: `think of it\n${WEATHER}`, ...asked });
    const output = { type: "function_call_output", call_id: calls(answer)[0].call_id, output: "fog" };
    const given = [...user("the weather?"), ...answer.output, output];
    const made = await client.conversations.create({});
    const added = (await client.conversations.items.create(made.id, { items: given })).data;
    const back = await all(client.conversations.items.list(made.id, { order: "asc", limit: 1 }));
    same(back, added);
    same(back.map((item) => item.type), ["message", "reasoning", "function_call", "function_call_output"]);
    const next = await client.responses.create({ input: "say and on", conversation: made.id, ...asked });
    same(next.output_text, "and on");
    for (const item of back) {
      const where = { conversation_id: made.id };
      same(await client.conversations.items.retrieve(item.id, where), item);
      await client.conversations.items.delete(item.id, where);
    }
    const left = await all(client.conversations.items.list(made.id));
    const said = left.filter((item) => item.type === "message").map((item) => item.content[0].text);
    same(said, ["and on", "say and on"]);
    return `${back.length} items`;
  },
  "a conversation that is locked": async () => {
    const made = await client.conversations.create({});
    const asked = { model: MODEL, conversation: { id: made.id }, tools: [TOOL] };
    const stream = await client.responses.create({ input: LONG_CALL, stream: true, ...asked });
    let error;
    let last;
    for await (const event of stream) {
      last = event.type;
      if (event.type !== "response.created") continue;
      error = await client.responses.create({ input: "say now", ...asked }).catch((e) => e);
    }
    same(last, "response.completed");
    check(error instanceof OpenAI.BadRequestError, error);
    same([error.code, error.param], ["conversation_locked", "conversation"]);
    return error.message;
  },
  "a worker killed in a turn of a conversation": async () => {
    const quiet = await client.responses.create({ model: MODEL, input: LONG_CALL, tools: [TOOL] });
    const made = await client.conversations.create({});
    const asked = { model: MODEL, conversation: made.id, tools: [TOOL] };
    const stream = client.responses.stream({ input: LONG_CALL, ...asked });
    let text = "";
    for await (const event of stream) {
      if (event.type !== "response.function_call_arguments.delta") continue;
      const before = text.length;
      text += event.delta;
      if (before <= 60 && text.length > 60) killWorker();
    }
    same(text, calls(quiet)[0].arguments);
    const [call] = (await client.conversations.items.list(made.id)).data;
    same([call.type, call.arguments], ["function_call", text]);
    const output = { type: "function_call_output", call_id: call.call_id, output: "hail" };
    const said = (await client.responses.create({ input: [output], ...asked })).output_text;
    check(said.includes("hail"), said);
    return `${text.length} characters of arguments`;
  },
});
