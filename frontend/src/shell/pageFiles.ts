/* The cache of the service worker: the files of one build of the page, in a cache with that build's
   name. A cache is used only when it is complete, so HTML of one build never loads scripts of
   another. */

export interface Build {
  /** Differs for each content. */
  readonly version: string;
  /** The paths of all files; the page itself is "/". A name under /assets/ changes with the
      content. */
  readonly files: readonly string[];
}

export interface PageFilesParts {
  build: Build;
  /** The origin of the page and its files. */
  origin: string;
  caches: CacheStorage;
  fetch(request: Request | string, options?: RequestInit): Promise<Response>;
  pause(ms: number): Promise<void>;
}

/** The used part of a fetch event. `client`: the page that sent the request, or that the request
    loads. */
export interface PageFetch {
  readonly request: Request;
  readonly client: string;
  /** Adds work that is done after the reply. */
  after(work: Promise<unknown>): void;
}

export const CACHES = "tailrace.page.";
/** Fonts are cached when a formula first needs them. Pictures are for the browser's list of
    installed pages. */
const CACHED_ON_USE = /\.(woff2|png)$/;
/** The time limit of the network before the cached copy is used. */
const WAIT_MS = 3000;
const PAGE = "/";

export class PageFiles {
  /** The pages whose HTML came from the cache: their other files come from it, too. */
  private readonly cachedClients = new Set<string>();

  constructor(private readonly parts: PageFilesParts) {}

  private get name(): string {
    return CACHES + this.parts.build.version;
  }

  /** Fetches the whole build; rejects and stores nothing if a file cannot be fetched. During an
      upgrade, a service may still have the former build. */
  async install(): Promise<void> {
    const paths = this.parts.build.files.filter((path) => !CACHED_ON_USE.test(path));
    const responses = await Promise.all(paths.map(async (path) => [path, await this.fetchOwn(path)] as const));
    const cache = await this.parts.caches.open(this.name);
    await Promise.all(responses.map(([path, answer]) => cache.put(path, answer)));
  }

  /** Keeps the former build, for pages that are still open with it, and deletes older ones. */
  async activate(): Promise<void> {
    const others = (await this.parts.caches.keys()).filter((name) => name.startsWith(CACHES) && name !== this.name);
    await Promise.all(others.slice(0, -1).map((name) => this.parts.caches.delete(name)));
  }

  /** Null: the request is not for a file of the page, so the worker does not handle it. */
  answer(fetch: PageFetch): Promise<Response> | null {
    const { method, url, mode, headers } = fetch.request;
    const { origin, pathname } = new URL(url);
    if (method !== "GET" || origin !== this.parts.origin || headers.has("authorization") || headers.has("range")) return null;
    if (mode === "navigate") return pathname === PAGE || pathname === "/index.html" ? this.page(fetch) : null;
    if (pathname.startsWith("/assets/")) return this.asset(fetch, pathname);
    return pathname !== PAGE && this.parts.build.files.includes(pathname) ? this.file(fetch, pathname) : null;
  }

  private async page(fetch: PageFetch): Promise<Response> {
    const network = this.parts.fetch(fetch.request);
    const first = await this.answerInTime(network);
    if (first !== null) {
      if (first.ok) fetch.after(this.refresh(first.clone()));
      return first;
    }
    const copy = await this.cachedCopy(PAGE);
    if (copy === undefined) return network;
    this.cachedClients.add(fetch.client);
    return copy;
  }

  private async file(fetch: PageFetch, path: string): Promise<Response> {
    if (this.cachedClients.has(fetch.client)) return (await this.cachedCopy(path)) ?? this.parts.fetch(fetch.request);
    const network = this.parts.fetch(fetch.request);
    return (await this.answerInTime(network)) ?? (await this.cachedCopy(path)) ?? network;
  }

  private async asset(fetch: PageFetch, path: string): Promise<Response> {
    const copy = await this.parts.caches.match(path, { ignoreVary: true });
    if (copy !== undefined) return copy;
    const answer = await this.parts.fetch(fetch.request);
    if (answer.ok && this.parts.build.files.includes(path)) fetch.after(this.store(path, answer.clone()));
    return answer;
  }

  /** Null: no reply within the time limit, or a server error. */
  private answerInTime(network: Promise<Response>): Promise<Response | null> {
    const healthy = network.then(
      (answer) => (answer.status >= 500 ? null : answer),
      () => null,
    );
    return Promise.race([healthy, this.parts.pause(WAIT_MS).then(() => null)]);
  }

  private async cachedCopy(path: string): Promise<Response | undefined> {
    const cache = await this.parts.caches.open(this.name);
    return cache.match(path, { ignoreVary: true });
  }

  // The headers may change without a new build: the policy names the push services.
  private async refresh(answer: Response): Promise<void> {
    if (this.isOurs(await answer.clone().text())) await this.store(PAGE, answer);
  }

  private async store(path: string, answer: Response): Promise<void> {
    await (await this.parts.caches.open(this.name)).put(path, answer);
  }

  private async fetchOwn(path: string): Promise<Response> {
    const answer = await this.parts.fetch(path, path.startsWith("/assets/") ? {} : { cache: "no-cache" });
    const isPage = (answer.headers.get("content-type") ?? "").startsWith("text/html");
    // A proxy may answer any request with a page of its own, or redirect to it.
    if (!answer.ok || answer.redirected || isPage !== (path === PAGE)) throw new Error(`${path} is not a file of the page`);
    if (isPage && !this.isOurs(await answer.clone().text())) throw new Error(`${path} is of another build`);
    return answer;
  }

  private isOurs(html: string): boolean {
    const paths = html.match(/\/assets\/[\w.-]+/g) ?? [];
    return paths.length > 0 && paths.every((path) => this.parts.build.files.includes(path));
  }
}
