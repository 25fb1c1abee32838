/* Registers the service worker (src/shell/), with which the page opens without a network, and
   removes it where the deployment no longer has one. */

import { CACHES } from "../shell/pageFiles";

const SCRIPT = "/sw.js";
const SCOPE = "/";

export interface ServiceWorkerParts {
  /** Undefined where the browser has no service workers, as on pages without TLS. */
  workers: Pick<ServiceWorkerContainer, "register" | "getRegistration"> | undefined;
  caches: Pick<CacheStorage, "keys" | "delete"> | undefined;
  fetch(path: string, options: RequestInit): Promise<Response>;
}

export async function updateServiceWorker({ workers, caches, fetch }: ServiceWorkerParts): Promise<void> {
  if (workers === undefined) return;
  // The browser alone does not remove a worker whose script is gone.
  const answer = await fetch(SCRIPT, { method: "HEAD", cache: "no-cache" }).catch(() => null);
  // A browser aborts a request whose body is not read and lists it as failed. This body is empty.
  await answer?.arrayBuffer().catch(() => undefined);
  const status = answer?.status ?? 0;
  if (status === 404 || status === 410) {
    await (await workers.getRegistration(SCOPE))?.unregister();
    for (const name of (await caches?.keys()) ?? []) if (name.startsWith(CACHES)) await caches?.delete(name);
  } else if (status === 200) {
    // During an upgrade of the services the worker may not find all its files. The next load tries
    // again.
    await workers.register(SCRIPT, { scope: SCOPE, updateViaCache: "none" }).catch(() => undefined);
  }
}
