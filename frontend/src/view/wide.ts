/* Tables and formulas that are wider than the page scroll in their own box. A scrolling box can get
   the focus, so that the keyboard scrolls it; a box that fits cannot. */

import { texts } from "../core/words";

export class Wide {
  private readonly observer = new ResizeObserver((entries) => {
    for (const { target } of entries) update(target.closest<HTMLElement>(".wide"));
  });

  /** Observes tables and formulas in this part of the document. */
  watch(part: ChildNode | undefined): void {
    if (!(part instanceof HTMLElement)) return;
    const boxes = part.matches(".wide") ? [part] : part.querySelectorAll<HTMLElement>(".wide");
    for (const each of boxes) {
      this.observer.observe(each);
      // The box keeps its size when its content grows.
      if (each.firstElementChild !== null) this.observer.observe(each.firstElementChild);
    }
  }
}

function update(box: HTMLElement | null): void {
  if (box === null) return;
  const scrolls = box.scrollWidth > box.clientWidth + 1;
  if (scrolls === box.hasAttribute("tabindex")) return;
  if (scrolls) {
    box.setAttribute("tabindex", "0");
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", box.matches(".table") ? texts().table : texts().formula);
  } else for (const name of ["tabindex", "role", "aria-label"]) box.removeAttribute(name);
}
