/* The attachments above a question: images are drawn, texts are listed by name. */

import type { Attachment } from "../core/attachments";
import { sizeWords } from "../core/messages";
import { texts } from "../core/words";
import { h, icon, setText } from "./dom";
import { canvasOf, type Elsewhere, type Pictures } from "./pictures";

export class Files {
  readonly element = h("ul", { class: "files", "aria-label": texts().attachments, hidden: true });
  private drawnIds = "";
  private images: QuestionImage[] = [];

  constructor(private readonly pictures: Pictures) {}

  /** `responseId`: the first response to the question; null: none. */
  show(attachments: readonly Attachment[], responseId: string | null, connected: boolean): void {
    const ids = attachments.map(({ fileId }) => fileId).join(" ");
    if (ids !== this.drawnIds) {
      this.drawnIds = ids;
      this.images = attachments.filter(({ kind }) => kind === "image").map((each) => new QuestionImage(each, this.pictures));
      const images = [...this.images];
      this.element.replaceChildren(...attachments.map((each) => (each.kind === "image" ? (images.shift()?.element ?? "") : textFile(each))));
      this.element.hidden = attachments.length === 0;
    }
    this.images.forEach((image, place) => image.load(responseId === null ? null : { responseId, place }, connected));
  }
}

function textFile({ name, bytes }: Attachment): HTMLElement {
  return h("li", { class: "file" }, icon("file"), h("span", { class: "name", title: name }, name), h("span", { class: "size" }, sizeWords(bytes)));
}

class QuestionImage {
  readonly element: HTMLElement;
  private readonly missing = h("span", { class: "size" });
  /** The source of the last try; null: none yet. */
  private lastSource: string | null = null;

  constructor(
    private readonly image: Attachment,
    private readonly pictures: Pictures,
  ) {
    this.element = h("li", { class: "image", "data-state": "open" }, icon("file"), h("span", { class: "name", title: image.name }, image.name), this.missing);
  }

  // Tries again when there is a connection, or another source.
  load(elsewhere: Elsewhere | null, connected: boolean): void {
    const source = `${elsewhere?.responseId ?? ""} ${connected}`;
    if (this.element.dataset["state"] === "shown" || this.lastSource === source) return;
    this.lastSource = source;
    void this.pictures.get(this.image, elsewhere).then((picture) => {
      if (picture !== null) {
        this.element.dataset["state"] = "shown";
        this.element.replaceChildren(canvasOf(picture, this.image.name));
      } else if (connected && this.element.dataset["state"] !== "shown") {
        this.element.dataset["state"] = "missing";
        setText(this.missing, texts().imageNotShown);
      }
    });
  }
}
