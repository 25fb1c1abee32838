import { defineConfig } from "vitest/config";
import chat from "./vite.config";

// Apart from the chat page, whose folder the gateway serves as a whole.
export default defineConfig({
  ...chat,
  build: { ...chat.build, outDir: "dist-admin", rollupOptions: { input: "admin.html" } },
});
