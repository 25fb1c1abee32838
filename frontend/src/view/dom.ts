type Props = Partial<Record<string, string | boolean | ((event: Event) => void)>>;

/** An element with attributes, listeners (`onclick`) and children. Text is always set as text. */
export function h<K extends keyof HTMLElementTagNameMap>(tag: K, props: Props = {}, ...children: (globalThis.Node | string)[]): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (typeof value === "string") element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

const ICONS = {
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7.5 7.5h9v9h-9z",
  menu: "M4 7h16M4 12h16M4 17h10",
  close: "M6 6l12 12M18 6L6 18",
  copy: "M9 9h10v10H9zM5 15V5h10",
  check: "M5 12.5l4.5 4.500L19 7.5",
  retry: "M19 12a7 7 0 1 1-2.2-5.100M19 4v4h-4",
  keyboard: "M3 7h18v11H3zM7 11h.01M11 11h.01M15 11h.01M8 15h8",
  dots: "M5 12h.01M12 12h.01M19 12h.01",
  trash: "M5 7h14M10 7V5h4v2M7 7l1 12h8l1-12",
  down: "M12 5v14M6 13l6 6 6-6",
  edit: "M5 19l1-4L16 5l3 3L9 18zM14 7l3 3",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 3v1.500M12 19.500V21M3 12h1.500M19.5 12H21M5.6 5.600l1.1 1.100M17.3 17.300l1.1 1.100M18.4 5.600l-1.1 1.100M6.7 17.300l-1.1 1.1",
  moon: "M19.5 14.500A8 8 0 0 1 9.5 4.500a8 8 0 1 0 10 10z",
  auto: "M4 5h16v11H4zM9 20h6M12 16v4",
  sliders: "M4 8h9M17 8h3M4 16h3M11 16h9M15 6v4M9 14v4",
  clip: "M19.500 11.500l-7.800 7.800a5 5 0 0 1-7.100-7.100l8.200-8.200a3.300 3.300 0 0 1 4.700 4.700l-8.200 8.200a1.700 1.700 0 0 1-2.400-2.400l7.500-7.500",
  file: "M7 4h7l4 4v12H7zM14 4v4h4",
  globe: "M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16zM4 12h16M12 4c-4.500 5-4.500 11 0 16M12 4c4.500 5 4.500 11 0 16",
  chevron: "M9 6l6 6-6 6",
  back: "M15 6l-6 6 6 6",
  tool: "M4 7l5 5-5 5M12 17h8",
  key: "M14.5 9.500a4 4 0 1 0-4 4 4 4 0 0 0 2.8-1.200L20 19M17 16l2-2",
} as const;

export type IconName = keyof typeof ICONS;

export function icon(name: IconName): SVGSVGElement {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", `icon icon-${name}`);
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** Does not touch an element with this text, so that assistive technology does not announce it
    again. */
export function setText(element: HTMLElement, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // The clipboard interface exists only on secure origins. Other pages use the older command.
    const field = h("textarea", { class: "offscreen", readonly: true });
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
