// LangChain and LangGraph for JavaScript: tools, all structured methods, an agent; both APIs.
import { tool } from "@langchain/core/tools";
import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { createReactAgent } from "@langchain/langgraph/prebuilt";
import { ChatOpenAI } from "@langchain/openai";
import { z } from "zod";
import { BASE, KEY, LONG_CALL, MODEL, WEATHER, check, killWorker, main, same } from "./scenarios.mjs";

const APIS = { "Chat Completions": false, Responses: true };
const model = (useResponsesApi, options = {}) =>
  new ChatOpenAI({ model: MODEL, apiKey: KEY, configuration: { baseURL: BASE }, maxRetries: 0, useResponsesApi, ...options });
const weather = tool(({ city }) => `21 degrees in ${city}`, {
  name: "get_weather",
  description: "Tell the weather.",
  schema: z.object({ city: z.string() }),
});
const Person = z.object({ name: z.string(), age: z.number().int() });

const scenarios = {};
for (const [name, responses] of Object.entries(APIS)) {
  scenarios[`plain over ${name}`] = async () => {
    const said = await model(responses).invoke("say hello");
    check(said.text.includes("scripted engine"), said);
    return JSON.stringify(said.usage_metadata);
  };
  scenarios[`streamed over ${name}`] = async () => {
    let text = "";
    for await (const chunk of await model(responses).stream("say hello there")) text += chunk.text;
    check(text.includes("scripted engine"), text);
    return text;
  };
  scenarios[`tools in two rounds over ${name}`] = async () => {
    const bound = model(responses).bindTools([weather], { tool_choice: "auto" });
    const messages = [new HumanMessage(`${WEATHER}\ncall get_weather {"city": "Rome"}`)];
    const first = await bound.invoke(messages);
    same(first.tool_calls.map((call) => call.args.city), ["Paris", "Rome"]);
    messages.push(first);
    for (const call of [...first.tool_calls].reverse())
      messages.push(new ToolMessage({ content: `wind in ${call.args.city}`, tool_call_id: call.id }));
    const second = await bound.invoke(messages);
    check(second.text.includes("wind in Rome"), second);
    return second.text;
  };
  for (const method of ["jsonSchema", "functionCalling", "jsonMode"])
    scenarios[`structured by ${method} over ${name}`] = async () => {
      const person = { name: "Ann", age: 40 };
      const asked = method === "functionCalling" ? `call extract ${JSON.stringify(person)}` : `json ${JSON.stringify(person)}`;
      const found = await model(responses).withStructuredOutput(Person, { method, name: "extract" }).invoke(asked);
      same(found, person);
      return JSON.stringify(found);
    };
  scenarios[`an agent over ${name}`] = async () => {
    const agent = createReactAgent({ llm: model(responses), tools: [weather] });
    const asked = `${WEATHER}\nthen\ncall get_weather {"city": "Rome"}\nthen\nsay both are warm`;
    const { messages } = await agent.invoke({ messages: [new HumanMessage(asked)] });
    check(messages.at(-1).text === "both are warm", messages.at(-1));
    return `${messages.length} messages`;
  };
  scenarios[`a worker killed in a tool call over ${name}`] = async () => {
    const bound = model(responses).bindTools([weather]);
    let whole, killed = false;
    for await (const chunk of await bound.stream(LONG_CALL)) {
      whole = whole ? whole.concat(chunk) : chunk;
      if (!killed && (whole.tool_call_chunks?.[0]?.args ?? "").length > 100) {
        killed = true;
        killWorker();
      }
    }
    const again = await bound.invoke(LONG_CALL);
    check(killed);
    same(whole.tool_calls.map((call) => call.args), again.tool_calls.map((call) => call.args));
    return `${JSON.stringify(whole.tool_calls).length} characters`;
  };
}
scenarios["log probabilities"] = async () => {
  const said = await model(false, { logprobs: true, topLogprobs: 2 }).invoke("say hello");
  check(said.response_metadata.logprobs?.content?.length, said.response_metadata);
  return `${said.response_metadata.logprobs.content.length} tokens`;
};

await main(scenarios);
