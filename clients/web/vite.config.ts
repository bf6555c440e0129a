import { createHash } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

const WORKER = "service-worker.js";

/** Tells the service worker which files the page has, and a version that changes with them. */
function shell(): Plugin {
  return {
    name: "shell",
    apply: "build",
    enforce: "post",
    generateBundle(_options, bundle) {
      const worker = bundle[WORKER];
      if (worker?.type !== "chunk") throw new Error(`there is no ${WORKER}`);
      const contents = new Map<string, string | Uint8Array>();
      for (const file of Object.values(bundle)) {
        if (file !== worker) contents.set(file.fileName, file.type === "chunk" ? file.code : file.source);
      }
      for (const name of readdirSync("public")) contents.set(name, readFileSync(`public/${name}`));
      const names = [...contents.keys()].sort();
      const digest = createHash("sha256");
      for (const name of names) digest.update(name).update(contents.get(name) ?? "");
      // The first page is asked for by its folder.
      const addresses = names.map((name) => (name === "index.html" ? "./" : name));
      worker.code = worker.code
        .replace("__SHELL__", JSON.stringify(addresses))
        .replace("__VERSION__", JSON.stringify(digest.digest("hex").slice(0, 12)));
    },
  };
}

export default defineConfig({
  // Relative, so that the page also works behind a proxy that adds a path.
  base: "./",
  plugins: [shell()],
  build: {
    outDir: "../../moss_stream/server/static",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    target: "es2022",
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    rollupOptions: {
      input: { index: "index.html", room: "room.html", "service-worker": "src/page/service-worker.ts" },
      output: {
        // Its scope is the folder it lies in, and its name must not change.
        entryFileNames: ({ name }) => (name === "service-worker" ? WORKER : "assets/[name]-[hash].js"),
      },
    },
  },
  server: {
    proxy: { "/v1": { target: "http://127.0.0.1:8000", ws: true } },
  },
  test: { include: ["test/**/*.test.ts"] },
});
