// `@openai/agents`: function tool, handoff, outputType, socket, Chat Completions.
import { Agent, OpenAIProvider, Runner, setTracingDisabled, tool } from "@openai/agents";
import { z } from "zod";
import { BASE, KEY, LONG_CALL, MODEL, WEATHER, check, killWorker, main, same } from "./scenarios.mjs";

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
});
