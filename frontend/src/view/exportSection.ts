import { title, type Conversation } from "../core/conversation";
import { texts } from "../core/words";
import { h, setText } from "./dom";

type Writers = typeof import("../core/export");

/** Loaded when the dialog opens, because few chats are saved. */
const loadWriters = (): Promise<Writers> => import("../core/export");

/** Saves a chat as a file. */
export class ExportSection {
  readonly element: HTMLElement;
  private readonly trouble = h("p", { class: "trouble", role: "alert" });
  private conversation: Conversation | null = null;

  /** `get`: returns the current chat with this id. */
  constructor(private readonly get: (id: string) => Conversation | null) {
    const save = (words: string, suffix: string, type: string, writer: keyof Writers): HTMLElement =>
      h("button", { type: "button", onclick: () => void this.save(suffix, type, writer) }, words);
    this.element = h(
      "section",
      {},
      h("h3", {}, texts().exportChat),
      h("div", { class: "row" }, save(texts().asMarkdown, "md", "text/markdown", "asMarkdown"), save(texts().asJson, "json", "application/json", "asJson")),
      this.trouble,
    );
  }

  show(conversation: Conversation): void {
    this.conversation = conversation;
    this.element.hidden = conversation.turns.length === 0;
    setText(this.trouble, "");
    void loadWriters().catch(() => undefined); // a button reports it when it is pressed
  }

  private async save(suffix: string, type: string, writer: keyof Writers): Promise<void> {
    const write = await loadWriters().then(
      (module) => module[writer],
      () => null,
    );
    setText(this.trouble, write === null ? texts().unreachable : "");
    const conversation = this.conversation === null ? null : this.get(this.conversation.id);
    if (write === null || conversation === null) return;
    const url = URL.createObjectURL(new Blob([write(conversation)], { type: `${type};charset=utf-8` }));
    h("a", { href: url, download: `${fileName(title(conversation))}.${suffix}` }).click();
    setTimeout(() => URL.revokeObjectURL(url), LONG_ENOUGH_MS);
  }
}

/** The browser reads the file after the click. */
const LONG_ENOUGH_MS = 60_000;

/** A file name that is valid on every file system. */
function fileName(name: string): string {
  return name.replace(/[\\/:*?"<>|\p{Cc}]+/gu, " ").replace(/\s+/g, " ").replace(/^[ .]+|[ .]+$/g, "").slice(0, 80) || "chat";
}
