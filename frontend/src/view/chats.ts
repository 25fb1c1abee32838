/* The reader's chats: the list, the search in it, and the dialog of one chat. */

import type { Conversation } from "../core/conversation";
import { findLocally } from "../core/find";
import type { Controller } from "../controller";
import type { Library } from "../library";
import { ChatDialog, type ChatDialogPart } from "./chatDialog";
import { Side, type SearchState } from "./side";

export interface ChatsParts {
  controller: Controller;
  library: Library;
  open(id: string | null): void;
  /** A chat was deleted; this can be undone for a while. */
  onRemove(conversation: Conversation): void;
  onChange(): void;
}

export class Chats {
  readonly side: Side;
  private readonly dialog: ChatDialog;
  private query = "";
  private searchState: SearchState | null = null;

  constructor(
    private readonly parts: ChatsParts,
    footer: HTMLElement,
    sections: readonly ChatDialogPart[],
  ) {
    const { controller, library } = parts;
    this.side = new Side(
      {
        newChat: () => parts.open(null),
        open: (id) => parts.open(id),
        remove: (id) => this.remove(id),
        options: (id) => this.show(id),
        search: (words) => void this.search(words),
        more: () => void library.more(),
      },
      footer,
    );
    this.dialog = new ChatDialog(
      {
        rename: (id, name) => library.rename(id, name),
        pin: (id, pinned) => library.pin(id, pinned),
        get: (id) => controller.get(id),
        remove: (id) => this.remove(id),
      },
      sections,
    );
  }

  get elements(): readonly HTMLElement[] {
    return [this.dialog.element];
  }

  draw(current: string | null): void {
    const { controller, library } = this.parts;
    this.side.draw({ conversations: controller.list(), current, search: this.searchState, hasMore: library.hasMore }, Date.now());
  }

  /** Called for another user: closes the dialog and clears the search. */
  reset(): void {
    this.dialog.element.close();
    this.side.clear();
  }

  private show(id: string): void {
    const conversation = this.parts.controller.get(id);
    if (conversation === null) return;
    this.dialog.show(conversation);
    // A chat that was never opened here has no turns yet; sharing and saving need them.
    void this.parts.library.load(id).then(() => this.dialog.onTurns(id));
  }

  private remove(id: string): void {
    const next = this.side.neighbour(id);
    const conversation = this.parts.library.remove(id);
    if (conversation === null) return;
    this.parts.onRemove(conversation);
    next.focus();
  }

  // First the results of this browser, then those of the server, which has more chats and may be
  // unreachable.
  private async search(words: string): Promise<void> {
    this.query = words;
    this.searchState = words === "" ? null : { snippets: findLocally(this.parts.controller.list(), words), running: true };
    this.parts.onChange();
    if (this.searchState === null) return;
    const serverSnippets = await this.parts.library.search(words).catch(() => new Map<string, string>());
    if (words !== this.query) return;
    this.searchState = { snippets: new Map([...serverSnippets, ...this.searchState.snippets]), running: false };
    this.parts.onChange();
  }
}
