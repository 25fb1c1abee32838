import { createHash } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";
import { join, relative } from "node:path";
import { defineConfig } from "vite";

/** The frames of diagrams have no origin, so no service worker answers for them; and what draws is of megabytes. */
const OF_DIAGRAMS = /^(?:diagram\.js|assets\/mermaid\..*)$/;
const DIST = new URL("dist/", import.meta.url).pathname;

/** What `vite build` has just written: a name of its content, and the paths by which it is served. */
function built() {
  const paths = readdirSync(DIST, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name))
    // A shared chat is of no use without its server, and its address is a credential.
    .filter((path) => !path.endsWith(".html") || relative(DIST, path) === "index.html")
    .filter((path) => !OF_DIAGRAMS.test(relative(DIST, path)))
    .sort();
  const digest = createHash("sha256");
  for (const path of paths) digest.update(relative(DIST, path)).update("\0").update(readFileSync(path)).update("\0");
  // What a link leads to is nothing without the server, so it need not open without one.
  const files = paths.map((path) => `/${relative(DIST, path)}`).filter((path) => path !== "/shared.html").map((path) => (path === "/index.html" ? "/" : path));
  return { version: digest.digest("hex").slice(0, 16), files };
}

// After the page's own build: it knows the names of its files, and is not one of them.
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
