/** Let the browser keep the page's files: it then opens without a network and can be installed. */
export function installShell(): void {
  // Only pages over TLS and on this machine may; in development the files change all the time.
  if (!("serviceWorker" in navigator) || !import.meta.env.PROD) return;
  const address = new URL("service-worker.js", document.baseURI);
  navigator.serviceWorker.register(address).catch((error: unknown) => {
    // A certificate that was accepted by hand is not good enough: the page works as before.
    console.info("The page is not kept for use without a network:", error);
  });
}
