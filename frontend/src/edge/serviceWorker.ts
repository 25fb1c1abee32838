/* Brings the service worker (src/shell/) that lets the page open without a network, and takes it away from a deployment that
   has none any more. */

import { CACHES } from "../shell/pageFiles";

const SCRIPT = "/sw.js";
const SCOPE = "/";

export interface ServiceWorkerParts {
  /** Undefined where the browser has none, as in pages without TLS. */
  workers: Pick<ServiceWorkerContainer, "register" | "getRegistration"> | undefined;
  caches: Pick<CacheStorage, "keys" | "delete"> | undefined;
  fetch(path: string, options: RequestInit): Promise<Response>;
}

export async function updateServiceWorker({ workers, caches, fetch }: ServiceWorkerParts): Promise<void> {
  if (workers === undefined) return;
  // The browser itself keeps a worker whose script is gone.
  const answer = await fetch(SCRIPT, { method: "HEAD", cache: "no-cache" }).catch(() => null);
  // A browser breaks off, and lists as failed, a request whose answer is not read; this one has no content.
  await answer?.arrayBuffer().catch(() => undefined);
  const status = answer?.status ?? 0;
  if (status === 404 || status === 410) {
    await (await workers.getRegistration(SCOPE))?.unregister();
    for (const name of (await caches?.keys()) ?? []) if (name.startsWith(CACHES)) await caches?.delete(name);
  } else if (status === 200) {
    // While services are upgraded it may not find all of its files, and is tried again with the next load.
    await workers.register(SCRIPT, { scope: SCOPE, updateViaCache: "none" }).catch(() => undefined);
  }
}
