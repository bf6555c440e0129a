/** The element of the page with this id. */
export function byId<T extends HTMLElement = HTMLElement>(id: string): T {
  return document.getElementById(id) as T;
}

/** The address of a WebSocket of the server that the page comes from, without a query. */
export function socketAddress(path: string): string {
  const url = new URL(path, document.baseURI);
  url.protocol = url.protocol.replace("http", "ws");
  url.search = url.hash = "";
  return url.href;
}

/** Make a function that draws at most once a frame, however often it is called. */
export function oncePerFrame(draw: () => void): () => void {
  let isDue = false;
  return () => {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => {
      isDue = false;
      draw();
    });
  };
}
