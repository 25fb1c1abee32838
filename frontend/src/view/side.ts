import { isAnyBusy, title, type Conversation } from "../core/conversation";
import { h, icon, setText } from "./dom";

export interface SideParts {
  fresh(): void;
  open(id: string): void;
  remove(id: string): void;
}

/** The conversations kept in this browser. */
export class Side {
  readonly element: HTMLElement;
  private readonly list = h("ul", { class: "conversations" });
  private readonly rows = new Map<string, { row: HTMLElement; link: HTMLAnchorElement; words: HTMLElement }>();
  private readonly none = h("p", { class: "none" }, "Your chats are kept in this browser.");

  constructor(
    private readonly parts: SideParts,
    footer: HTMLElement,
  ) {
    const brand = h("div", { class: "brand" }, h("img", { src: "/icon.svg", alt: "", width: "26", height: "26" }), h("span", {}, "Tailrace"));
    const fresh = h("button", { type: "button", class: "fresh", title: "New chat (Ctrl+Shift+O)", onclick: () => parts.fresh() }, icon("plus"), h("span", {}, "New chat"));
    this.element = h("nav", { class: "side", id: "side", "aria-label": "Conversations" }, brand, fresh, this.none, this.list, footer);
  }

  draw(conversations: readonly Conversation[], current: string | null): void {
    this.none.hidden = conversations.length > 0;
    const kept = new Set(conversations.map((conversation) => conversation.id));
    for (const [id, { row }] of this.rows) {
      if (kept.has(id)) continue;
      row.remove();
      this.rows.delete(id);
    }
    conversations.forEach((conversation, place) => {
      const { row, link, words } = this.rows.get(conversation.id) ?? this.add(conversation.id);
      if (this.list.children[place] !== row) this.list.insertBefore(row, this.list.children[place] ?? null);
      setText(words, title(conversation));
      link.title = title(conversation);
      row.dataset["busy"] = String(isAnyBusy(conversation));
      if (conversation.id === current) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    });
  }

  private add(id: string): { row: HTMLElement; link: HTMLAnchorElement; words: HTMLElement } {
    const words = h("span", { class: "words" });
    const link = h("a", { href: `#c=${encodeURIComponent(id)}`, onclick: (event) => this.opened(event as MouseEvent, id) }, h("span", { class: "pulse", "aria-hidden": "true" }), words);
    const remove = h("button", { type: "button", class: "remove", "aria-label": "Delete chat", title: "Delete chat", onclick: () => this.parts.remove(id) }, icon("trash"));
    const made = { row: h("li", {}, link, remove), link, words };
    this.rows.set(id, made);
    return made;
  }

  private opened(event: MouseEvent, id: string): void {
    // With a modifier it is the browser's: a new tab shows the same conversation.
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    this.parts.open(id);
  }
}
