import { createHash } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";
import { join, relative } from "node:path";
import { defineConfig } from "vite";

/** A service worker does not serve the frames of diagrams, which have no origin. Their script has
    megabytes. */
const OF_DIAGRAMS = /^(?:diagram\.js|assets\/mermaid\..*)$/;
const DIST = new URL("dist/", import.meta.url).pathname;

/** The files that `vite build` has just written: a digest of their content, and their paths on the
    server. */
function built() {
  const paths = readdirSync(DIST, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name))
    // A shared chat needs its server, and its address is a credential.
    .filter((path) => !path.endsWith(".html") || relative(DIST, path) === "index.html")
    .filter((path) => !OF_DIAGRAMS.test(relative(DIST, path)))
    .sort();
  const digest = createHash("sha256");
  for (const path of paths) digest.update(relative(DIST, path)).update("\0").update(readFileSync(path)).update("\0");
  // The page of a shared chat need not open without the server.
  const files = paths.map((path) => `/${relative(DIST, path)}`).filter((path) => path !== "/shared.html").map((path) => (path === "/index.html" ? "/" : path));
  return { version: digest.digest("hex").slice(0, 16), files };
}

// Runs after the page's build: the worker has the names of the page's files and is not one of them.
export default defineConfig(({ command }) => ({
  publicDir: false,
  define: command === "build" ? { BUILD: JSON.stringify(built()) } : {},
  build: {
    target: "es2022",
    emptyOutDir: false,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    rollupOptions: { input: "src/shell/sw.ts", output: { entryFileNames: "sw.js" } },
  },
}));
