import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";
import { de } from "./src/core/words/de";
import { en } from "./src/core/words/en";

/** KaTeX lists each font in three formats. Every browser that runs this page supports the first. */
const oneFormat: Plugin = {
  name: "one-font-format",
  enforce: "pre",
  transform: (code, id) => (id.includes("katex") && id.endsWith(".css") ? code.replace(/,url\([^)]*\) format\("(?:woff|truetype)"\)/g, "") : null),
};

/** Without JavaScript no language can be chosen, so the text is in all languages. */
const withoutScript: Plugin = {
  name: "without-script",
  transformIndexHtml: (html) =>
    html.replace("<noscript></noscript>", `<noscript>${[en, de].map(({ code, needsJavaScript }) => `<p lang="${code}">${needsJavaScript}</p>`).join("")}</noscript>`),
};

/** Adds a link to the Markdown code, for public/early.js. */
const chatParts: Plugin = {
  name: "chat-parts",
  transformIndexHtml: {
    order: "post",
    handler: (_html, { bundle, path }) => {
      const part = Object.values(bundle ?? {}).find((each) => each.type === "chunk" && each.name === "markdown");
      return part === undefined || path !== "/index.html" ? [] : [{ tag: "link", attrs: { "data-chat": true, href: `/${part.fileName}` }, injectTo: "head-prepend" }];
    },
  },
};

export default defineConfig({
  plugins: [oneFormat, withoutScript, chatParts],
  build: {
    target: "es2022",
    // The strict content security policy forbids inline scripts, and allows data: only for images.
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    reportCompressedSize: false,
    rollupOptions: { input: ["index.html", "shared.html"] },
  },
  // No test measures speed, so the timeout is long. Test files share a process and its modules,
  // which takes a third of the time.
  test: { include: ["tests/**/*.test.ts"], environment: "node", testTimeout: 60_000, pool: "threads", isolate: false },
});
