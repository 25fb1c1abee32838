import { texts } from "../core/words";
import { h, icon, setText } from "./dom";

/** The dialog of a link with a credential. It asks first: the author of the link can read what is
    asked with its credential. */
export class LinkSignIn {
  readonly element: HTMLDialogElement;
  private readonly title = h("h2", { id: "link-title" });
  private readonly explanation = h("p", { class: "why" });
  private readonly accept = h("button", { type: "submit", class: "primary", value: "take" }, texts().signIn);
  private readonly decline = h("button", { type: "submit", class: "secondary", value: "leave" }, texts().doNotSignIn);

  constructor() {
    const warning = h("p", { class: "hint" }, texts().linkWarning);
    const form = h("form", { method: "dialog" }, icon("key"), this.title, this.explanation, warning, this.accept, this.decline);
    this.element = h("dialog", { class: "signin", "aria-labelledby": "link-title" }, form);
  }

  /** Resolves with whether the reader agreed. Closing the dialog in another way means no. */
  confirm(who: string, instead: string | null): Promise<boolean> {
    setText(this.title, texts().signInAsQuestion(who));
    setText(this.explanation, instead === null ? texts().linkCredential(who) : texts().linkCredentialInstead(who, instead));
    setText(this.accept, texts().signInAs(who));
    setText(this.decline, instead === null ? texts().doNotSignIn : texts().stay(instead));
    this.element.returnValue = "";
    this.element.showModal();
    this.decline.focus();
    return new Promise((done) => {
      this.element.addEventListener("close", () => done(this.element.returnValue === "take"), { once: true });
    });
  }
}
