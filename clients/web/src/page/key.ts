/** The access key: from the address (`?token=`), or asked for when the server wants one. */

const STORED = "moss-stream.key";

export class KeyPrompt {
  readonly #dialog: HTMLDialogElement;
  readonly #input: HTMLInputElement;
  readonly #stored: string;

  /** `room`: whose token it is; empty for a key of the server. */
  constructor(dialog: HTMLDialogElement, room: string, onKey: () => void = () => {}) {
    this.#dialog = dialog;
    this.#input = dialog.querySelector("input") as HTMLInputElement;
    this.#stored = room ? `${STORED}.${room}` : STORED;
    dialog.querySelector("form")?.addEventListener("submit", () => {
      sessionStorage.setItem(this.#stored, this.#input.value);
      onKey();
    });
    dialog.querySelector("button[type=button]")?.addEventListener("click", () => dialog.close());
    this.#takeFromAddress();
  }

  get key(): string {
    return sessionStorage.getItem(this.#stored) ?? "";
  }

  open(): void {
    if (this.#dialog.open) return;
    this.#input.value = "";
    this.#dialog.showModal();
  }

  /** A key must not stay in the address bar, where it is seen and shared. */
  #takeFromAddress(): void {
    const address = new URL(location.href);
    const token = address.searchParams.get("token");
    if (token === null) return;
    sessionStorage.setItem(this.#stored, token);
    address.searchParams.delete("token");
    history.replaceState(null, "", address);
  }
}

/** What the server says to a key: `locked` wants another one, `missing` is not there. */
export type Access = "open" | "locked" | "missing" | "unknown";

/** Ask the server for something that needs the key; `path` as in `v1/models`. */
export async function access(path: string, key: string): Promise<Access> {
  try {
    const response = await fetch(new URL(path, document.baseURI), { headers: authorization(key) });
    if (response.status === 401 || response.status === 403) return "locked";
    if (response.status === 404) return "missing";
    return response.ok ? "open" : "unknown";
  } catch {
    return "unknown"; // Not reachable: the connection says so when it is tried.
  }
}

export function authorization(key: string): Record<string, string> {
  return key ? { Authorization: `Bearer ${key}` } : {};
}
