import { afterEach, describe, expect, it, vi } from "vitest";
import { readLink, tokenIn } from "../../src/edge/sharedLink";

const PAGE = { title: "Rain", created_at: 10, expires_at: 20, has_more: false, next: null };

afterEach(() => vi.unstubAllGlobals());

function answering(...answers: (Response | Error)[]): ReturnType<typeof vi.fn> {
  const request = vi.fn(() => {
    const next = answers.shift();
    return next instanceof Response ? Promise.resolve(next) : Promise.reject(next ?? new Error("asked too often"));
  });
  vi.stubGlobal("fetch", request);
  return request;
}

function json(body: unknown, status = 200, headers: Record<string, string> = {}): Response {
  return new Response(JSON.stringify(body), { status, headers });
}

function rows(...texts: string[]): object[] {
  return texts.map((text) => ({ role: "assistant", text, continues: true }));
}

describe("the token", () => {
  it("stands in the address, and nothing else does", () => {
    expect(tokenIn("/s/Ab-_9")).toBe("Ab-_9");
    for (const path of ["/", "/s/", "/s", "/s/a/b", "/s/a%2fb", "/s/a?b", "/x/s/a", "/shared.html"]) expect(tokenIn(path)).toBeNull();
  });
});

describe("a link", () => {
  it("is read page by page, without a cookie", async () => {
    const request = answering(json({ ...PAGE, data: rows("One tw"), next: 50 }), json({ ...PAGE, data: rows("o", ""), next: null }));
    expect(await readLink("tok")).toMatchObject({ kind: "chat", title: "Rain", sharedAt: 10_000, messages: [{ text: "One two" }] });
    expect(request.mock.calls.map(([path]) => path as string)).toEqual(["/v1/shared/tok", "/v1/shared/tok?after=50"]);
    for (const [, options] of request.mock.calls) expect(options).toMatchObject({ credentials: "omit", cache: "no-store" });
  });

  it("whose pages lead nowhere is not read for ever", async () => {
    const request = answering(json({ ...PAGE, data: [], next: 50 }), json({ ...PAGE, data: [], next: 50 }));
    expect(await readLink("tok")).toMatchObject({ kind: "chat", messages: [] });
    expect(request).toHaveBeenCalledTimes(2);
  });

  it("that ended says so, also between two pages", async () => {
    answering(json({}, 404));
    expect(await readLink("tok")).toEqual({ kind: "gone" });
    answering(json({ ...PAGE, data: [], next: 50 }), json({}, 404));
    expect(await readLink("tok")).toEqual({ kind: "gone" });
  });

  it("that cannot be read now says why", async () => {
    answering(json({}, 429, { "retry-after": "7" }));
    expect(await readLink("tok")).toEqual({ kind: "away", words: "The service is busy, or you have reached your limit. Try again in 7 s." });
    answering(json({}, 503));
    expect(await readLink("tok")).toMatchObject({ words: expect.stringContaining("Try again in a moment.") as string });
    answering(json({}, 500));
    expect(await readLink("tok")).toMatchObject({ words: "The server answered 500." });
    answering(new Response("<html>", { status: 200 }));
    expect(await readLink("tok")).toMatchObject({ kind: "away" });
    answering(new TypeError("network"));
    expect(await readLink("tok")).toEqual({ kind: "away", words: "The server cannot be reached." });
  });
});
