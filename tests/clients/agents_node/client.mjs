// `@openai/agents`: function tool, handoff, outputType, socket, Chat Completions.
import { Agent, OpenAIProvider, Runner, setTracingDisabled, tool } from "@openai/agents";
import { OpenAIConversationsSession } from "@openai/agents";
import OpenAI from "openai";
import { z } from "zod";
import { BASE, KEY, LONG_CALL, MODEL, WEATHER } from "./scenarios.mjs";
import { check, emptyRedis, killWorker, main, restartGateway, same } from "./scenarios.mjs";

setTracingDisabled(true);
const heard = [];
const getWeather = tool({
  name: "get_weather",
  description: "Tell the weather of a city.",
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => {
    heard.push(city);
    return `21 degrees in ${city.slice(0, 20)}`;
  },
});
const helper = new Agent({ name: "helper", model: MODEL, instructions: "Help.", tools: [getWeather] });
// With a tool: without one the scripted engine takes no commands.
const spanish = new Agent({ name: "Spanish", model: MODEL, instructions: "Spanish.", tools: [getWeather] });
const triage = Agent.create({ name: "triage", model: MODEL, instructions: "Hand over.", handoffs: [spanish] });
const reporter = new Agent({
  name: "reporter",
  model: MODEL,
  instructions: "Report.",
  tools: [getWeather],
  outputType: z.object({ city: z.string(), degrees: z.number() }),
});

async function using(options, work) {
  const modelProvider = new OpenAIProvider({ apiKey: KEY, baseURL: BASE, ...options });
  try {
    return await work(new Runner({ modelProvider, tracingDisabled: true }));
  } finally {
    await modelProvider.close();
  }
}

const functionTool = (options) => () =>
  using(options, async (runner) => {
    const result = await runner.run(helper, WEATHER);
    check(result.finalOutput.includes("21 degrees in Paris"), result.finalOutput);
    const again = [...result.history, { role: "user", content: "say thanks" }];
    const second = await runner.run(helper, again);
    same(second.finalOutput, "thanks");
    return result.finalOutput;
  });
const handoff = (options) => () =>
  using(options, async (runner) => {
    const result = await runner.run(triage, "call transfer_to_Spanish {}\nthen\nsay Hola.");
    same([result.lastAgent.name, result.finalOutput], ["Spanish", "Hola."]);
    return result.finalOutput;
  });
const outputType = (options) => () =>
  using(options, async (runner) => {
    const report = { city: "Paris", degrees: 21 };
    const result = await runner.run(reporter, `${WEATHER}\nthen\njson ${JSON.stringify(report)}`);
    same(result.finalOutput, report);
    return JSON.stringify(result.finalOutput);
  });
const killed = (options) => () =>
  using(options, async (runner) => {
    heard.length = 0;
    const quiet = await runner.run(helper, LONG_CALL);
    const result = await runner.run(helper, LONG_CALL, { stream: true });
    let text = "";
    let done = false;
    for await (const event of result) {
      const inner = event.type === "raw_model_stream_event" ? event.data?.event : undefined;
      if (inner?.type !== "response.function_call_arguments.delta") continue;
      text += inner.delta;
      if (text.length > 60 && !done) {
        done = true;
        killWorker();
      }
    }
    await result.completed;
    check(done, text);
    check(heard.length === 2 && heard[0] === heard[1], heard);
    same(result.finalOutput, quiet.finalOutput);
    return `${text.length} characters of arguments`;
  });

const client = new OpenAI({ baseURL: BASE, apiKey: KEY, maxRetries: 0, timeout: 90_000 });
const kindsIn = async (conversation) => {
  const found = [];
  for await (const item of client.conversations.items.list(conversation, { order: "asc", limit: 2 })) {
    found.push([item.type, item.role].filter(Boolean).join(" "));
  }
  return found;
};
const TOOL_TURN = ["message user", "function_call", "function_call_output", "message assistant"];
const SAID_TURN = ["message user", "message assistant"];
const conversation = (options) => () =>
  using(options, async (runner) => {
    const conversationId = (await client.conversations.create({ items: [] })).id;
    const first = await runner.run(helper, WEATHER, { conversationId });
    check(first.finalOutput.includes("21 degrees in Paris"), first.finalOutput);
    await restartGateway();
    const second = await runner.run(helper, "say thanks", { conversationId, stream: true });
    await second.completed;
    same(second.finalOutput, "thanks");
    await emptyRedis();
    const third = await runner.run(triage, "call transfer_to_Spanish {}\nthen\nsay Hola.", { conversationId });
    same([third.lastAgent.name, third.finalOutput], ["Spanish", "Hola."]);
    const kinds = await kindsIn(conversationId);
    same(kinds, [...TOOL_TURN, ...SAID_TURN, ...TOOL_TURN]);
    await client.conversations.delete(conversationId);
    return `${kinds.length} items`;
  });
const session = (options) => () =>
  using(options, async (runner) => {
    const kept = new OpenAIConversationsSession({ client });
    const modelSettings = {
      reasoning: { effort: "low", summary: "auto" },
      providerData: { include: ["reasoning.encrypted_content"] },
    };
    const thinking = helper.clone({ modelSettings });
    for (let turn = 0; turn < 6; turn += 1) {
      const words = `think of it\n${WEATHER}\nthen\nsay turn ${turn}`;
      same((await runner.run(thinking, words, { session: kept })).finalOutput, `turn ${turn}`);
      if (turn === 1) await restartGateway();
      if (turn === 2) await emptyRedis();
    }
    const found = await kept.getItems();
    const called = ["message", "reasoning", "function_call", "function_call_result"];
    same(found.map((item) => item.type), Array(6).fill([...called, "reasoning", "message"]).flat());
    same(await kept.getItems(3), found.slice(-3));
    same(await kept.popItem(), found.at(-1));
    same(await kept.getItems(), found.slice(0, -1));
    await kept.clearSession();
    same(await kept.getItems(), []);
    return `${found.length} items`;
  });
const locked = () =>
  using({}, async (runner) => {
    const conversationId = (await client.conversations.create({})).id;
    const asked = { model: MODEL, conversation: conversationId, input: "first" };
    const metadata = { script_tokens: "40", script_pace_ms: "40" };
    const running = await client.responses.create({ ...asked, metadata, stream: true });
    const error = await runner.run(helper, "say thanks", { conversationId }).catch((e) => e);
    let last;
    for await (const event of running) last = event.type;
    same(last, "response.completed");
    same(error.code, "conversation_locked");
    const result = await runner.run(helper, "say thanks", { conversationId });
    same(result.finalOutput, "thanks");
    same(await kindsIn(conversationId), [...SAID_TURN, ...SAID_TURN]);
    return error.message;
  });
const killedInConversation = (options) => () =>
  using(options, async (runner) => {
    heard.length = 0;
    const quiet = await runner.run(helper, LONG_CALL);
    const conversationId = (await client.conversations.create({})).id;
    const result = await runner.run(helper, LONG_CALL, { conversationId, stream: true });
    let text = "";
    let done = false;
    for await (const event of result) {
      const inner = event.type === "raw_model_stream_event" ? event.data?.event : undefined;
      if (inner?.type !== "response.function_call_arguments.delta") continue;
      text += inner.delta;
      if (text.length > 60 && !done) {
        done = true;
        killWorker();
      }
    }
    await result.completed;
    check(done, text);
    check(heard.length === 2 && heard[0] === heard[1], heard);
    same(result.finalOutput, quiet.finalOutput);
    same(await kindsIn(conversationId), TOOL_TURN);
    return `${text.length} characters of arguments`;
  });

const SOCKET = { useResponsesWebSocket: true };
const CHAT = { useResponses: false };
await main({
  "a function tool": functionTool({}),
  "a handoff": handoff({}),
  "an output type": outputType({}),
  "a tool over the socket": functionTool(SOCKET),
  "a handoff over the socket": handoff(SOCKET),
  "an output type over the socket": outputType(SOCKET),
  "a tool over Chat Completions": functionTool(CHAT),
  "a handoff over Chat Completions": handoff(CHAT),
  "an output type over Chat Completions": outputType(CHAT),
  "a worker killed in a tool call": killed({}),
  "a worker killed in a tool call over the socket": killed(SOCKET),
  "a conversation": conversation({}),
  "a conversation over the socket": conversation(SOCKET),
  "a session in a conversation": session({}),
  "a conversation that is locked": locked,
  "a worker killed in a turn of a conversation": killedInConversation({}),
  "a worker killed in a turn of a conversation over the socket": killedInConversation(SOCKET),
});
