import { beforeEach, describe, expect, it } from "vitest";
import { CACHES, PageFiles, type PageFetch, type Build } from "../../src/shell/pageFiles";

const ORIGIN = "https://chat.example";
const html = (build: string): string => `<script type="module" src="/assets/index-${build}.js"></script><link href="/assets/index-${build}.css">`;

function build(name: string): Build {
  return { version: name, files: ["/", "/early.js", `/assets/index-${name}.js`, `/assets/index-${name}.css`, "/assets/KaTeX-1.woff2"] };
}

/** The used part of a CacheStorage. */
class Caches {
  readonly all = new Map<string, Map<string, Response>>();

  open = (name: string): Promise<Cache> => {
    const files = this.all.get(name) ?? new Map<string, Response>();
    this.all.set(name, files);
    return Promise.resolve({
      put: (path: string, answer: Response) => Promise.resolve(void files.set(path, answer)),
      match: (path: string) => Promise.resolve(files.get(path)?.clone()),
    } as unknown as Cache);
  };
  keys = (): Promise<string[]> => Promise.resolve([...this.all.keys()]);
  delete = (name: string): Promise<boolean> => Promise.resolve(this.all.delete(name));
  match = (path: string): Promise<Response | undefined> => Promise.resolve([...this.all.values()].map((files) => files.get(path)).find((each) => each !== undefined)?.clone());
}

let caches: Caches;
/** Path → body on the server; another path is answered 404. */
let server: Map<string, string>;
let status: number;
/** Whether the network answers. "slow": after the timeout. */
let network: "there" | "away" | "slow";
let fetched: string[];

function deploy(name: string): void {
  server = new Map(build(name).files.map((path) => [path, path === "/" ? html(name) : `${path} of ${name}`]));
}

function files(name: string): PageFiles {
  return new PageFiles({
    build: build(name),
    origin: ORIGIN,
    caches: caches as unknown as CacheStorage,
    fetch: (request) => {
      const path = typeof request === "string" ? request : new URL(request.url).pathname;
      fetched.push(path);
      if (network === "away") return Promise.reject(new TypeError("away"));
      if (network === "slow") return new Promise(() => undefined);
      const body = server.get(path === "/index.html" ? "/" : path);
      const type = path.endsWith(".js") ? "text/javascript" : path === "/" ? "text/html; charset=utf-8" : "text/css";
      return Promise.resolve(new Response(body ?? "none", { status: body === undefined ? 404 : status, headers: { "content-type": type } }));
    },
    // Resolves at once, but after a reply that is ready.
    pause: () => new Promise((done) => setTimeout(done, 0)),
  });
}

const works: Promise<unknown>[] = [];

function request(path: string, options: { mode?: RequestMode; client?: string; method?: string; headers?: Record<string, string> } = {}): PageFetch {
  const { mode = "no-cors", client = "tab", method = "GET", headers = {} } = options;
  // Node cannot create a request with this mode.
  const request = { url: new URL(path, ORIGIN).href, mode, method, headers: new Headers(headers) } as Request;
  return { request, client, after: (work) => void works.push(work) };
}

async function text(answer: Promise<Response> | null): Promise<string | null> {
  const words = answer === null ? null : await (await answer).text();
  await Promise.all(works.splice(0));
  return words;
}

const page = (worker: PageFiles, client = "tab"): Promise<string | null> => text(worker.answer(request("/", { mode: "navigate", client })));

beforeEach(() => {
  caches = new Caches();
  status = 200;
  network = "there";
  fetched = [];
  deploy("one");
});

describe("what is kept", () => {
  it("is the whole build, without the fonts", async () => {
    await files("one").install();
    expect([...(caches.all.get(`${CACHES}one`)?.keys() ?? [])]).toEqual(["/", "/early.js", "/assets/index-one.js", "/assets/index-one.css"]);
  });

  it.each<[string, () => void]>([
    ["a file is missing", () => server.delete("/assets/index-one.css")],
    ["the page is of another build", () => server.set("/", html("two"))],
    ["the page is not the page", () => server.set("/", "<h1>Log in</h1>")],
    ["the server is away", () => (network = "away")],
    ["the server fails", () => (status = 503)],
  ])("is nothing where %s", async (_, breaks) => {
    breaks();
    await expect(files("one").install()).rejects.toThrow();
    expect(caches.all.size).toBe(0);
  });

  it("is this build and the one before", async () => {
    caches.all.set("another", new Map());
    for (const name of ["one", "two", "three"]) {
      deploy(name);
      await files(name).install();
      await files(name).activate();
    }
    expect([...caches.all.keys()]).toEqual(["another", `${CACHES}two`, `${CACHES}three`]);
  });

  it("has fonts once they were needed", async () => {
    const worker = files("one");
    await text(worker.answer(request("/assets/KaTeX-1.woff2")));
    network = "away";
    expect(await text(worker.answer(request("/assets/KaTeX-1.woff2")))).toBe("/assets/KaTeX-1.woff2 of one");
  });
});

describe("the page", () => {
  it("comes from the network, a new build too, with that build's files", async () => {
    const worker = files("one");
    await worker.install();
    deploy("two");
    expect(await page(worker)).toBe(html("two"));
    expect(await text(worker.answer(request("/early.js")))).toBe("/early.js of two");
    expect(await text(worker.answer(request("/assets/index-two.js")))).toBe("/assets/index-two.js of two");
    // The cache still has one build.
    network = "away";
    expect(await page(worker)).toBe(html("one"));
    expect(await text(worker.answer(request("/assets/index-one.js")))).toBe("/assets/index-one.js of one");
  });

  it.each<[string, () => void]>([
    ["is away", () => (network = "away")],
    ["does not answer in time", () => (network = "slow")],
    ["fails", () => (status = 502)],
  ])("is the kept one, with its own files, where the server %s", async (_, breaks) => {
    const worker = files("one");
    await worker.install();
    breaks();
    expect(await page(worker)).toBe(html("one"));
    deploy("two");
    [network, status] = ["there", 200];
    expect(await text(worker.answer(request("/early.js")))).toBe("/early.js of one");
    expect(await text(worker.answer(request("/early.js", { client: "another tab" })))).toBe("/early.js of two");
  });

  it("is what the server says where nothing is kept", async () => {
    status = 503;
    expect((await files("one").answer(request("/", { mode: "navigate" })))?.status).toBe(503);
    network = "away";
    await expect(files("one").answer(request("/", { mode: "navigate" }))).rejects.toThrow("away");
  });

  it("is kept with the headers that it had last", async () => {
    const worker = files("one");
    await worker.install();
    server.set("/", `${html("one")}<!-- later -->`);
    await page(worker);
    network = "away";
    expect(await page(worker)).toContain("later");
  });
});

it("takes the files of an open page from the build before", async () => {
  await files("one").install();
  deploy("two");
  const worker = files("two");
  await worker.install();
  await worker.activate();
  fetched = [];
  expect(await text(worker.answer(request("/assets/index-one.js")))).toBe("/assets/index-one.js of one");
  expect(fetched).toEqual([]);
});

it.each<[string, PageFetch]>([
  ["the API", request("/v1/responses")],
  ["the settings", request("/config.json")],
  ["the state", request("/ready")],
  ["a credential", request("/dev/credential")],
  ["the worker itself", request("/sw.js")],
  ["a page of the API", request("/v1/responses/r", { mode: "navigate" })],
  ["a chat that is shared by link", request("/s/token", { mode: "navigate" })],
  ["what is sent", request("/early.js", { method: "POST" })],
  ["what shows a credential", request("/early.js", { headers: { authorization: "Bearer x" } })],
  ["another origin", request("https://push.example/early.js")],
])("leaves %s alone", async (_, request) => {
  const worker = files("one");
  await worker.install();
  expect(worker.answer(request)).toBeNull();
});
