/* The reader's chats: the list beside, what is looked for in it, and the dialog of one chat. */

import type { Conversation } from "../core/conversation";
import { findHere } from "../core/find";
import type { Controller } from "../controller";
import type { Library } from "../library";
import { ChatDialog, type ChatDialogPart } from "./chatDialog";
import { Side, type Found } from "./side";

export interface ChatsParts {
  controller: Controller;
  library: Library;
  open(id: string | null): void;
  /** It was deleted; it can be brought back for a while. */
  removed(conversation: Conversation): void;
  changed(): void;
}

export class Chats {
  readonly side: Side;
  private readonly dialog: ChatDialog;
  private words = "";
  private found: Found | null = null;

  constructor(
    private readonly parts: ChatsParts,
    footer: HTMLElement,
    sections: readonly ChatDialogPart[],
  ) {
    const { controller, library } = parts;
    this.side = new Side(
      {
        fresh: () => parts.open(null),
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
        now: (id) => controller.get(id),
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
    this.side.draw({ conversations: controller.list(), current, found: this.found, hasMore: library.hasMore }, Date.now());
  }

  /** Another user: nothing is looked for, and no chat is on show. */
  reset(): void {
    this.dialog.element.close();
    this.side.clear();
  }

  private show(id: string): void {
    const conversation = this.parts.controller.get(id);
    if (conversation === null) return;
    this.dialog.show(conversation);
    // What was never opened here cannot be shared or saved yet.
    void this.parts.library.bring(id).then(() => this.dialog.brought(id));
  }

  private remove(id: string): void {
    const next = this.side.beside(id);
    const removed = this.parts.library.remove(id);
    if (removed === null) return;
    this.parts.removed(removed);
    next.focus();
  }

  // What is kept here is found at once. The server knows of more, and may be away.
  private async search(words: string): Promise<void> {
    this.words = words;
    this.found = words === "" ? null : { snippets: findHere(this.parts.controller.list(), words), running: true };
    this.parts.changed();
    if (this.found === null) return;
    const there = await this.parts.library.search(words).catch(() => new Map<string, string>());
    if (words !== this.words) return;
    this.found = { snippets: new Map([...there, ...this.found.snippets]), running: false };
    this.parts.changed();
  }
}
