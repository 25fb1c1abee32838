/* The service worker: the page opens without a network. It handles only the files of the page. The
   API, sockets and all other requests go to the network. */

import { PageFiles, type Build } from "./pageFiles";

declare const self: ServiceWorkerGlobalScope;
/** Inserted by the build. */
declare const BUILD: Build;

const files = new PageFiles({
  build: BUILD,
  origin: self.location.origin,
  caches: self.caches,
  fetch: (request, options) => fetch(request, options),
  pause: (ms) => new Promise((done) => setTimeout(done, ms)),
});

self.addEventListener("install", (event) => {
  event.waitUntil(files.install().then(() => self.skipWaiting()));
});

self.addEventListener("activate", (event) => {
  event.waitUntil(files.activate().then(() => self.clients.claim()));
});

self.addEventListener("fetch", (event) => {
  const client = event.resultingClientId || event.clientId;
  const answer = files.answer({ request: event.request, client, after: (work) => event.waitUntil(work) });
  if (answer !== null) event.respondWith(answer);
});
