import { texts } from "../core/words";
import { copyText } from "./dom";

/** Makes the copy buttons of code blocks within `element` work. Notices are not copied. */
export function enableCopying(element: HTMLElement): void {
  element.addEventListener("click", (event) => {
    const button = (event.target as Element).closest<HTMLElement>("button.copy-code");
    if (button !== null) void copyCode(button);
  });
}

async function copyCode(button: HTMLElement): Promise<void> {
  const code = button.closest(".code")?.querySelector("pre")?.cloneNode(true) as Element | undefined;
  for (const notice of code?.querySelectorAll(".seam") ?? []) notice.remove();
  if (!(await copyText(code?.textContent ?? ""))) return;
  if (button.textContent === texts().copied) return; // pressed again while it shows this
  const label = button.getAttribute("aria-label") ?? "";
  setLabel(button, texts().copied, texts().copied);
  setTimeout(() => setLabel(button, texts().copy, label), 1500);
}

// Sets the accessible name too: readers with voice control say the visible text.
function setLabel(button: HTMLElement, words: string, label: string): void {
  button.textContent = words;
  button.setAttribute("aria-label", label);
}
