import { defineConfig } from "vitest/config";

export default defineConfig({
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
