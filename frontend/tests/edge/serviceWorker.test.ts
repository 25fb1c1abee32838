import { describe, expect, it } from "vitest";
import { updateServiceWorker } from "../../src/edge/serviceWorker";
import { CACHES } from "../../src/shell/pageFiles";

/** The calls in a browser whose gateway answers with this status (0: no answer). */
async function done(status: number): Promise<string[]> {
  const calls: string[] = [];
  const registration = { unregister: () => Promise.resolve(calls.push("unregister") > 0) } as unknown as ServiceWorkerRegistration;
  await updateServiceWorker({
    workers: {
      register: (path) => Promise.resolve(void calls.push(`register ${path}`)).then(() => registration),
      getRegistration: () => Promise.resolve(registration),
    },
    caches: { keys: () => Promise.resolve([`${CACHES}one`, "another"]), delete: (name) => Promise.resolve(calls.push(`delete ${name}`) > 0) },
    fetch: () => (status === 0 ? Promise.reject(new TypeError("away")) : Promise.resolve(new Response(null, { status }))),
  });
  return calls;
}

describe("the service worker", () => {
  it("is brought where the deployment has one", async () => {
    expect(await done(200)).toEqual(["register /sw.js"]);
  });

  it("is taken away with what it kept where the deployment has none any more", async () => {
    expect(await done(404)).toEqual(["unregister", `delete ${CACHES}one`]);
  });

  it.each([0, 403, 503])("is left as it is where that is not known (%i)", async (status) => {
    expect(await done(status)).toEqual([]);
  });

  it("is asked for by a request that ends: its answer is read, though it has no content", async () => {
    const answer = new Response("");
    const workers = { register: () => Promise.reject(new TypeError("away")), getRegistration: () => Promise.resolve(undefined) };
    await updateServiceWorker({ workers, caches: undefined, fetch: () => Promise.resolve(answer) });
    expect(answer.bodyUsed).toBe(true);
  });

  it("is not missed where the browser has none", async () => {
    await updateServiceWorker({ workers: undefined, caches: undefined, fetch: () => Promise.reject(new Error("asked")) });
  });
});
