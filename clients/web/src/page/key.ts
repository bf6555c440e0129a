/** The access key: from the address (`?token=`), or asked for when the server wants one. */

const STORED = "moss-stream.key";

export class KeyPrompt {
  readonly #dialog: HTMLDialogElement;
  readonly #input: HTMLInputElement;

  constructor(dialog: HTMLDialogElement) {
    this.#dialog = dialog;
    this.#input = dialog.querySelector("input") as HTMLInputElement;
    dialog.querySelector("form")?.addEventListener("submit", () => {
      sessionStorage.setItem(STORED, this.#input.value);
    });
    dialog.querySelector("button[type=button]")?.addEventListener("click", () => dialog.close());
    takeFromAddress();
  }

  get key(): string {
    return sessionStorage.getItem(STORED) ?? "";
  }

  open(): void {
    if (this.#dialog.open) return;
    this.#input.value = "";
    this.#dialog.showModal();
  }
}

/** Ask the server whether it refuses this key. */
export async function needsKey(key: string): Promise<boolean> {
  try {
    const headers: HeadersInit = key ? { Authorization: `Bearer ${key}` } : {};
    const response = await fetch(new URL("v1/models", document.baseURI), { headers });
    return response.status === 401;
  } catch {
    return false; // Not reachable: the connection says so when it is tried.
  }
}

/** A key must not stay in the address bar, where it is seen and shared. */
function takeFromAddress(): void {
  const address = new URL(location.href);
  const token = address.searchParams.get("token");
  if (token === null) return;
  sessionStorage.setItem(STORED, token);
  address.searchParams.delete("token");
  history.replaceState(null, "", address);
}
