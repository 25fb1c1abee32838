import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { Api, type Ask } from "../../src/edge/api";

const ASK: Ask = { model: null, instructions: "", temperature: null, maxOutputTokens: null, input: "Count.", previousResponseId: null, conversation: null, trimmed: false, key: "k", metadata: {} };

let requests: { path: string; method: string; headers: Headers; body: unknown }[];
let answers: Record<string, () => Response>;

beforeEach(() => {
  requests = [];
  answers = {};
  vi.stubGlobal("fetch", async (path: string, { method = "GET", headers, body }: RequestInit) => {
    requests.push({ path, method, headers: new Headers(headers), body: typeof body === "string" ? JSON.parse(body) : body });
    return answers[path]?.() ?? new Response(JSON.stringify({ error: { code: "not_found", message: "no" } }), { status: 404 });
  });
});

afterEach(() => vi.unstubAllGlobals());

const api = new Api("", { headers: () => ({ "x-tailrace-session": "t" }), renew: async () => true });
const json = (body: unknown, status = 200) => (): Response => new Response(JSON.stringify(body), { status });

describe("a question", () => {
  it("says what was set, and nothing of what is usual", async () => {
    answers["/v1/responses"] = json({ id: "r" });
    expect(await api.ask(ASK)).toBe("r");
    await api.ask({ ...ASK, model: "m", instructions: "Be brief.", temperature: 0, maxOutputTokens: 5 });
    const usual = { input: "Count.", background: true, store: true, metadata: {} };
    expect(requests.map(({ body }) => body)).toEqual([usual, { ...usual, model: "m", instructions: "Be brief.", temperature: 0, max_output_tokens: 5 }]);
  });
});

describe("what a server offers", () => {
  it("is read by model, and what it does not say is not taken", async () => {
    const takes = { a: { images: true, files: true, max_output_tokens: 9 }, b: { images: null, files: true }, c: { images: "yes" }, d: 5 };
    answers["/config.json"] = json({ models: ["a"], takes });
    expect((await api.config()).takes).toEqual({
      a: { images: true, files: true, maxOutputTokens: 9 },
      b: { images: null, files: true, maxOutputTokens: null },
      c: { images: false, files: false, maxOutputTokens: null },
      d: { images: false, files: false, maxOutputTokens: null },
    });
    answers["/config.json"] = json({ models: ["a"] });
    expect((await api.config()).takes).toEqual({});
  });
});

describe("an upload", () => {
  it("is a form, under its key, also after the session was renewed", async () => {
    const refusals = [json({ error: { code: "session_token_missing", message: "no" } }, 403)];
    answers["/v1/files"] = () => (refusals.pop() ?? json({ id: "f", expires_at: 7 }))();
    const attachment = await api.upload(new Blob(["abc"]), "notes.md", "file", "key");
    expect(attachment).toEqual({ fileId: "f", name: "notes.md", kind: "file", bytes: 3, expiresAt: 7000 });
    expect(requests).toHaveLength(2);
    for (const { body, headers } of requests) {
      expect([headers.get("idempotency-key"), headers.get("x-tailrace-session"), headers.get("content-type")]).toEqual(["key", "t", null]);
      const form = body as FormData;
      expect(form.get("purpose")).toBe("user_data");
      expect([(form.get("file") as File).name, await (form.get("file") as File).text()]).toEqual(["notes.md", "abc"]);
    }
  });

  it("is read again, or is not there", async () => {
    answers["/v1/files/f%2F1/content"] = () => new Response("abc");
    expect(await (await api.content("f/1"))?.text()).toBe("abc");
    expect(await api.content("g")).toBeNull();
    vi.stubGlobal("fetch", () => Promise.reject(new TypeError("away")));
    expect(await api.content("f/1")).toBeNull();
  });
});

describe("the images of a response", () => {
  it("are those that were sent, in their order", async () => {
    const [one, two] = ["data:image/png;base64,AA==", "data:image/jpeg;base64,AQ=="];
    const parts = [{ type: "input_image", image_url: one }, { type: "input_text", text: "?" }, { type: "input_image", image_url: two }, { type: "input_image", image_url: "https://elsewhere" }];
    answers["/v1/responses/r/input_items?order=asc&limit=100"] = json({ data: [{ type: "message", content: parts }, { type: "message", content: "text" }, { type: "function_call" }] });
    expect(await api.inputImages("r")).toEqual([one, two]);
    expect(await api.inputImages("s")).toBeNull();
  });
});
