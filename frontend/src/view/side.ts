import { isAnyBusy, title, type Conversation } from "../core/conversation";
import { byPeriod, type Period } from "../core/periods";
import { texts } from "../core/words";
import { h, icon, setText } from "./dom";

export interface SideParts {
  newChat(): void;
  open(id: string): void;
  remove(id: string): void;
  options(id: string): void;
  /** Searches for these words; empty: ends the search. */
  search(words: string): void;
  more(): void;
}

/** The state of a search. */
export interface SearchState {
  /** By conversation with a match: the text around it; empty for its title. */
  readonly snippets: ReadonlyMap<string, string>;
  /** Whether the server still searches. */
  readonly running: boolean;
}

export interface ChatList {
  readonly conversations: readonly Conversation[];
  readonly current: string | null;
  /** Null: no search. */
  readonly search: SearchState | null;
  /** Whether the server has more conversations. */
  readonly hasMore: boolean;
}

interface Row {
  readonly row: HTMLElement;
  readonly link: HTMLAnchorElement;
  readonly words: HTMLElement;
  readonly snippet: HTMLElement;
  readonly options: HTMLElement;
}

const SEARCH_AFTER_MS = 250;

/** The list of the reader's conversations, and a search field. */
export class Side {
  readonly element: HTMLElement;
  private readonly newChatButton: HTMLButtonElement;
  private readonly field: HTMLInputElement;
  private readonly lists = h("div", { class: "conversations" });
  private readonly rows = new Map<string, Row>();
  private readonly groups = new Map<string, { element: HTMLElement; list: HTMLElement }>();
  private readonly none = h("p", { class: "none", role: "status" });
  private readonly moreButton: HTMLButtonElement;
  private timer = 0;
  /** A key of the drawn list. The list is long, and most changes of chats do not change it. */
  private drawnKey = "";

  constructor(
    private readonly parts: SideParts,
    footer: HTMLElement,
  ) {
    const brand = h("div", { class: "brand" }, h("img", { src: "/icon.svg", alt: "", width: "26", height: "26" }), h("span", {}, "Tailrace"));
    this.newChatButton = h("button", { type: "button", class: "fresh", title: texts().newChatKeys, onclick: () => parts.newChat() }, icon("plus"), h("span", {}, texts().newChat));
    this.field = h("input", {
      type: "search",
      class: "search",
      placeholder: texts().searchChats,
      "aria-label": texts().searchChats,
      autocomplete: "off",
      enterkeyhint: "search",
      oninput: () => this.onSearchInput(),
      onkeydown: (event) => this.onSearchKeydown(event as KeyboardEvent),
    });
    this.moreButton = h("button", { type: "button", class: "further", hidden: true, onclick: () => parts.more() }, texts().showOlder);
    this.element = h("nav", { class: "side", id: "side", "aria-label": texts().conversations }, brand, this.newChatButton, this.field, this.none, this.lists, this.moreButton, footer);
  }

  draw(chats: ChatList, now: number): void {
    const visible = chats.search === null ? chats.conversations : chats.conversations.filter(({ id }) => chats.search?.snippets.has(id));
    const groups = chats.search === null ? byPeriod(visible, now) : [{ period: "found" as const, conversations: visible }];
    const key = JSON.stringify([
      groups.map(({ period, conversations }) => [period, conversations.map((each) => [each.id, each.remote, title(each), isAnyBusy(each), chats.search?.snippets.get(each.id)])]),
      chats.current,
      chats.search?.running,
      chats.hasMore,
    ]);
    if (key === this.drawnKey) return;
    this.drawnKey = key;
    this.moreButton.hidden = !chats.hasMore || chats.search !== null;
    setText(this.none, visible.length > 0 ? "" : this.emptyWords(chats.search));
    this.keepOnly(new Set(visible.map(({ id }) => id)), new Set(groups.map(({ period }) => period)));
    groups.forEach(({ period, conversations }, place) => {
      const { element, list } = this.group(period);
      if (this.lists.children[place] !== element) this.lists.insertBefore(element, this.lists.children[place] ?? null);
      conversations.forEach((each, row) => this.drawRow(list, row, each, chats));
    });
  }

  /** The element that gets the focus when this chat is deleted: the next chat, or the button for a
      new one. */
  neighbour(id: string): HTMLElement {
    const links = [...this.lists.querySelectorAll<HTMLElement>("a")];
    const place = links.findIndex((link) => link === this.rows.get(id)?.link);
    return (place === -1 ? undefined : (links[place + 1] ?? links[place - 1])) ?? this.newChatButton;
  }

  /** Ends the search. */
  clear(): void {
    window.clearTimeout(this.timer);
    this.field.value = "";
    this.parts.search("");
  }

  private emptyWords(search: SearchState | null): string {
    if (search === null) return texts().noChats;
    return search.running ? texts().searching : texts().nothingFound;
  }

  private drawRow(list: HTMLElement, place: number, conversation: Conversation, { current, search }: ChatList): void {
    const { row, link, words, snippet, options } = this.rows.get(conversation.id) ?? this.add(conversation.id);
    if (list.children[place] !== row) list.insertBefore(row, list.children[place] ?? null);
    const name = title(conversation);
    setText(words, name);
    setText(snippet, search?.snippets.get(conversation.id) ?? "");
    snippet.hidden = snippet.textContent === "";
    link.title = name;
    link.href = addressOf(conversation);
    options.setAttribute("aria-label", texts().optionsOf(name));
    row.dataset["busy"] = String(isAnyBusy(conversation));
    if (conversation.id === current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }

  private keepOnly(ids: ReadonlySet<string>, periods: ReadonlySet<string>): void {
    for (const [id, { row }] of this.rows) {
      if (ids.has(id)) continue;
      row.remove();
      this.rows.delete(id);
    }
    for (const [period, { element }] of this.groups) if (!periods.has(period)) element.remove();
  }

  private group(period: Period | "found"): { element: HTMLElement; list: HTMLElement } {
    const existing = this.groups.get(period);
    if (existing !== undefined) return existing;
    const name = `chats-${period}`;
    const list = h("ul", { "aria-labelledby": name });
    const group = { list, element: h("section", {}, h("div", { class: "period", id: name }, texts()[`${period}Chats`]), list) };
    this.groups.set(period, group);
    return group;
  }

  private add(id: string): Row {
    const words = h("span", { class: "words", dir: "auto" });
    const snippet = h("span", { class: "snippet", dir: "auto" });
    const link = h("a", { onclick: (event) => this.onLinkClick(event as MouseEvent, id) }, h("span", { class: "pulse", "aria-hidden": "true" }), h("span", { class: "lines" }, words, snippet));
    const options = h("button", { type: "button", class: "options", title: texts().chatOptions, onclick: () => this.parts.options(id) }, icon("dots"));
    const remove = h("button", { type: "button", class: "remove", "aria-label": texts().deleteChat, title: texts().deleteChat, onclick: () => this.parts.remove(id) }, icon("trash"));
    const row = { row: h("li", {}, link, options, remove), link, words, snippet, options };
    this.rows.set(id, row);
    return row;
  }

  private onLinkClick(event: MouseEvent, id: string): void {
    // With a modifier key the browser opens a new tab with the same conversation.
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    this.parts.open(id);
  }

  private onSearchInput(): void {
    window.clearTimeout(this.timer);
    const words = this.field.value.trim();
    this.timer = window.setTimeout(() => this.parts.search(words), words === "" ? 0 : SEARCH_AFTER_MS);
  }

  private onSearchKeydown(event: KeyboardEvent): void {
    if (event.key !== "Escape" || this.field.value === "") return;
    event.preventDefault();
    this.clear();
  }
}

/** The address of a conversation on this page. It is the same on all devices if the server has the
    conversation. */
export function addressOf({ id, remote }: Conversation): string {
  return `#c=${encodeURIComponent(remote ?? id)}`;
}
