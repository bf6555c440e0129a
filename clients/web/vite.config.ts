import { defineConfig } from "vitest/config";

export default defineConfig({
  // Relative, so that the page also works behind a proxy that adds a path.
  base: "./",
  build: {
    outDir: "../../moss_stream/server/static",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    target: "es2022",
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  server: {
    proxy: { "/v1": { target: "http://127.0.0.1:8000", ws: true } },
  },
  test: { include: ["test/**/*.test.ts"] },
});
