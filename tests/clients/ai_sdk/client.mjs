// Vercel AI SDK: tools, objects and streams of both, over Responses, Chat Completions and the
// provider for compatible servers.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { BASE, KEY, MODEL, WEATHER, check, main, same } from "./scenarios.mjs";

const openai = createOpenAI({ baseURL: BASE, apiKey: KEY });
const compatible = createOpenAICompatible({
  name: "tailrace",
  baseURL: BASE,
  apiKey: KEY,
  supportsStructuredOutputs: true,
});
const schema = z.object({ city: z.string(), degrees: z.number(), note: z.string().nullable() });
const tools = {
  get_weather: tool({
    description: "Tell the weather of a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => `21 degrees in ${city}`,
  }),
};
const models = {
  Responses: openai.responses(MODEL),
  "Chat Completions": openai.chat(MODEL),
  "the compatible provider": compatible(MODEL),
};
const scenarios = {};
for (const [name, model] of Object.entries(models)) {
  const asked = { model, maxRetries: 0 };
  const ended = (result, text) => {
    check(text.includes("21 degrees in Paris"), text);
    return text;
  };
  scenarios[`tools over ${name}`] = async () => {
    const result = await generateText({ ...asked, tools, prompt: WEATHER, stopWhen: stepCountIs(3) });
    same(result.steps.length, 2);
    return ended(result, result.text);
  };
  scenarios[`streamed tools over ${name}`] = async () => {
    const errors = [];
    const result = streamText({
      ...asked,
      tools,
      prompt: WEATHER,
      stopWhen: stepCountIs(3),
      onError: ({ error }) => errors.push(error),
    });
    const text = await result.text.catch((error) => Promise.reject(errors[0] ?? error));
    same((await result.steps)[0].toolCalls[0].input, { city: "Paris" });
    return ended(result, text);
  };
  scenarios[`an object over ${name}`] = async () => {
    const report = { city: "Paris", degrees: 21, note: null };
    const prompt = `json ${JSON.stringify(report)}`;
    const { output } = await generateText({ ...asked, prompt, output: Output.object({ schema }) });
    same(output, report);
    return JSON.stringify(output);
  };
  scenarios[`a streamed object over ${name}`] = async () => {
    const errors = [];
    const result = streamText({
      ...asked,
      prompt: "which?",
      output: Output.object({ schema }),
      onError: ({ error }) => errors.push(error),
    });
    let last;
    for await (const partial of result.partialOutputStream) last = partial;
    if (errors.length) throw errors[0];
    return JSON.stringify(schema.parse(last));
  };
  scenarios[`a choice and an array over ${name}`] = async () => {
    const choice = await generateText({
      ...asked,
      prompt: "which?",
      output: Output.choice({ options: ["sunny", "rainy"] }),
    });
    check(["sunny", "rainy"].includes(choice.output), choice.output);
    const array = await generateText({ ...asked, prompt: "all", output: Output.array({ element: schema }) });
    check(Array.isArray(array.output), array.output);
    return choice.output;
  };
}
// `conversation` is an option of the provider; conversations are made by other means.
scenarios["a conversation kept by the server"] = async () => {
  const headers = { authorization: `Bearer ${KEY}`, "content-type": "application/json" };
  const made = await (await fetch(`${BASE}/conversations`, { method: "POST", headers, body: "{}" })).json();
  const providerOptions = { openai: { conversation: made.id } };
  const asked = { model: models.Responses, maxRetries: 0, tools, providerOptions };
  const first = await generateText({ ...asked, prompt: WEATHER });
  const [result] = first.toolResults;
  same(result.output, "21 degrees in Paris");
  const content = [
    {
      type: "tool-result",
      toolCallId: result.toolCallId,
      toolName: result.toolName,
      output: { type: "text", value: result.output },
    },
  ];
  const second = streamText({ ...asked, messages: [{ role: "tool", content }] });
  const text = await second.text;
  check(text.includes("21 degrees in Paris"), text);
  same((await generateText({ ...asked, prompt: "say thanks" })).text, "thanks");
  const { data } = await (await fetch(`${BASE}/conversations/${made.id}/items?order=asc`, { headers })).json();
  const wanted = ["message", "function_call", "function_call_output", "message", "message", "message"];
  same(data.map((item) => item.type), wanted);
  return text;
};
await main(scenarios);
