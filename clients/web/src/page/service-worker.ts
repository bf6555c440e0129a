/**
 * Keeps the page's own files, so that it opens without a network.
 *
 * It answers for these files alone: everything else, such as the API, passes it by and is never
 * stored. A page is taken from the network where there is one, and then always is the one of the
 * running server; files with a hash in their name never change and are taken from the store.
 * A new version waits until no page uses the old one.
 */

// Filled in by the build.
declare const __SHELL__: readonly string[];
declare const __VERSION__: string;
const worker = self as unknown as ServiceWorkerGlobalScope;

const STORES = "moss-stream.shell.";
const STORE = STORES + __VERSION__;
/** A network that takes longer than this to bring a page is taken for none. */
const PATIENCE_MS = 4000;
const SHELL = new Set(__SHELL__.map((file) => new URL(file, worker.registration.scope).href));

worker.addEventListener("install", (event) => event.waitUntil(keep()));
worker.addEventListener("activate", (event) => event.waitUntil(forgetOthers()));
worker.addEventListener("fetch", (event) => {
  const { request } = event;
  const address = new URL(request.url);
  // The same file whatever is asked of it: `?token=` must not become part of a name.
  address.search = address.hash = "";
  if (request.method !== "GET" || !SHELL.has(address.href)) return;
  event.respondWith(request.mode === "navigate" ? freshOrKept(request, address.href) : kept(request, address.href));
});

async function keep(): Promise<void> {
  const store = await caches.open(STORE);
  await store.addAll([...SHELL].map((file) => new Request(file, { cache: "reload" })));
}

async function forgetOthers(): Promise<void> {
  const names = await caches.keys();
  const old = names.filter((name) => name.startsWith(STORES) && name !== STORE);
  await Promise.all(old.map((name) => caches.delete(name)));
}

async function kept(request: Request, file: string): Promise<Response> {
  const store = await caches.open(STORE);
  return (await store.match(file)) ?? fetch(request);
}

async function freshOrKept(request: Request, file: string): Promise<Response> {
  const timeout = new Promise<never>((_, reject) => setTimeout(reject, PATIENCE_MS));
  try {
    const response = await Promise.race([fetch(request), timeout]);
    if (response.status < 500) return response;
  } catch {
    // No network, or none worth the name.
  }
  return kept(request, file);
}
