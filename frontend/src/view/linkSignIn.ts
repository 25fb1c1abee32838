import { h, icon, setText } from "./dom";

/** Asks whether to sign in as the user that a link names: the person who made the link can read what is asked under its credential. */
export class LinkSignIn {
  readonly element: HTMLDialogElement;
  private readonly title = h("h2", { id: "link-title" });
  private readonly now = h("p", { class: "why" });
  private readonly take = h("button", { type: "submit", class: "primary", value: "take" }, "Sign in");
  private readonly leave = h("button", { type: "submit", class: "secondary", value: "leave" }, "Do not sign in");

  constructor() {
    const warning = h("p", { class: "hint" }, "The person who gave you the link can read what you ask as that user. Go on only if you trust it.");
    const form = h("form", { method: "dialog" }, icon("key"), this.title, this.now, warning, this.take, this.leave);
    this.element = h("dialog", { class: "signin", "aria-labelledby": "link-title" }, form);
  }

  /** Whether the reader agreed. Closing the dialog in any other way is a no. */
  ask(who: string, instead: string | null): Promise<boolean> {
    setText(this.title, `Sign in as ${who}?`);
    setText(this.now, instead === null ? `This link brings a credential of ${who}.` : `You are signed in as ${instead}. This link brings a credential of ${who}.`);
    setText(this.take, `Sign in as ${who}`);
    setText(this.leave, instead === null ? "Do not sign in" : `Stay ${instead}`);
    this.element.returnValue = "";
    this.element.showModal();
    this.leave.focus();
    return new Promise((done) => {
      this.element.addEventListener("close", () => done(this.element.returnValue === "take"), { once: true });
    });
  }
}
