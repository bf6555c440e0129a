/** Theme and text size, kept between visits. */

const THEMES = ["auto", "light", "dark"] as const;
type Theme = (typeof THEMES)[number];

const LABELS: Record<Theme, string> = { auto: "Auto", light: "Light", dark: "Dark" };
const SIZES = [0.8, 0.9, 1, 1.2, 1.5, 2] as const;
const USUAL_SIZE = 2;
const STORED_THEME = "moss-stream.theme";
const STORED_SIZE = "moss-stream.size";

/** Apply what was chosen before, and let the buttons change it. */
export function applyAppearance(theme: HTMLButtonElement, smaller: HTMLButtonElement, larger: HTMLButtonElement): void {
  const root = document.documentElement;
  const chosen = localStorage.getItem(STORED_THEME);
  let at = Math.max(0, THEMES.findIndex((name) => name === chosen));
  const showTheme = () => {
    const name = THEMES[at] ?? "auto";
    root.dataset["theme"] = name;
    theme.textContent = LABELS[name];
    theme.setAttribute("aria-label", `Colours: ${LABELS[name]}`);
    localStorage.setItem(STORED_THEME, name);
  };
  theme.addEventListener("click", () => {
    at = (at + 1) % THEMES.length;
    showTheme();
  });

  let size = Number(localStorage.getItem(STORED_SIZE) ?? USUAL_SIZE);
  const resize = (by: number) => {
    size = Math.min(SIZES.length - 1, Math.max(0, size + by));
    root.style.setProperty("--zoom", String(SIZES[size] ?? 1));
    smaller.disabled = size === 0;
    larger.disabled = size === SIZES.length - 1;
    localStorage.setItem(STORED_SIZE, String(size));
  };
  smaller.addEventListener("click", () => resize(-1));
  larger.addEventListener("click", () => resize(1));

  showTheme();
  resize(0);
}
