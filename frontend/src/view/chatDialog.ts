import { title, type Conversation } from "../core/conversation";
import { texts } from "../core/words";
import { h, icon, setText } from "./dom";

export interface ChatDialogParts {
  /** `rename` and `pin` reject where the server refuses. */
  rename(id: string, name: string): Promise<void>;
  pin(id: string, pinned: boolean): Promise<void>;
  get(id: string): Conversation | null;
  remove(id: string): void;
}

/** A section of the dialog. */
export interface ChatDialogPart {
  readonly element: HTMLElement;
  show(conversation: Conversation): void;
}

/** The dialog with the options of one chat. */
export class ChatDialog {
  readonly element: HTMLDialogElement;
  private readonly name = h("input", { id: "chat-name", type: "text", maxlength: "200", autocomplete: "off", dir: "auto" });
  private readonly pinned = h("input", { id: "chat-pinned", type: "checkbox", onchange: () => this.pin() });
  private readonly trouble = h("p", { class: "trouble", role: "alert" });
  private id = "";
  private hasTurns = false;

  constructor(
    private readonly parts: ChatDialogParts,
    private readonly sections: readonly ChatDialogPart[],
  ) {
    const close = h("button", { type: "button", class: "icon-button", "aria-label": texts().close, onclick: () => this.element.close() }, icon("close"));
    this.element = h(
      "dialog",
      { class: "chat-dialog", "aria-labelledby": "chat-dialog-title" },
      h("header", {}, h("h2", { id: "chat-dialog-title" }, texts().chatOptions), close),
      h("label", { for: "chat-name" }, texts().chatName),
      h("form", { class: "row", onsubmit: (event) => this.rename(event) }, this.name, h("button", { type: "submit" }, texts().saveName)),
      h("div", { class: "row check" }, this.pinned, h("label", { for: "chat-pinned" }, texts().pinChat)),
      ...sections.map(({ element }) => element),
      this.trouble,
      h("button", { type: "button", class: "danger", onclick: () => this.remove() }, icon("trash"), texts().deleteChat),
    );
  }

  show(conversation: Conversation): void {
    this.id = conversation.id;
    this.hasTurns = conversation.turns.length > 0;
    this.name.value = title(conversation);
    this.pinned.checked = conversation.label.pinned;
    setText(this.trouble, "");
    for (const section of this.sections) section.show(conversation);
    this.element.showModal();
    this.name.focus();
    this.name.select();
  }

  /** Called when the turns of this chat were read, or could not be read. */
  onTurns(id: string): void {
    const [conversation, hadTurns] = [this.parts.get(id), this.hasTurns];
    if (!this.element.open || id !== this.id || conversation === null) return;
    this.hasTurns = conversation.turns.length > 0;
    if (this.hasTurns && !hadTurns) for (const section of this.sections) section.show(conversation);
  }

  private rename(event: Event): void {
    event.preventDefault();
    const name = this.name.value.trim();
    if (name === "") return;
    void this.act(async () => {
      await this.parts.rename(this.id, name);
      this.element.close();
    });
  }

  private pin(): void {
    void this.act(() => this.parts.pin(this.id, this.pinned.checked));
  }

  private remove(): void {
    this.element.close();
    this.parts.remove(this.id);
  }

  private async act(run: () => Promise<void>): Promise<void> {
    setText(this.trouble, "");
    try {
      await run();
    } catch {
      setText(this.trouble, texts().notChanged);
      this.pinned.checked = this.parts.get(this.id)?.label.pinned ?? false;
    }
  }
}
