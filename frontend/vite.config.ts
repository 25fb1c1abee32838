import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

/** KaTeX names each font in three formats; every browser that runs this page reads the first. */
const oneFormat: Plugin = {
  name: "one-font-format",
  enforce: "pre",
  transform: (code, id) => (id.includes("katex") && id.endsWith(".css") ? code.replace(/,url\([^)]*\) format\("(?:woff|truetype)"\)/g, "") : null),
};

export default defineConfig({
  plugins: [oneFormat],
  build: {
    target: "es2022",
    // A strict Content-Security-Policy forbids inline script, and data: is allowed for images only.
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    reportCompressedSize: false,
  },
  // No test says how fast anything is: a busy machine has time.
  test: { include: ["tests/**/*.test.ts"], environment: "node", testTimeout: 60_000 },
});
