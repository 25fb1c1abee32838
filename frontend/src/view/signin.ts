import { h, icon } from "./dom";

/** Asks for a credential. It goes to this server once and is kept nowhere. */
export class SignIn {
  readonly element: HTMLDialogElement;
  private readonly field = h("textarea", { id: "credential", rows: "4", spellcheck: "false", autocomplete: "off", required: true });
  private readonly why = h("p", { class: "why" });

  /** `command`: what prints a credential during development. */
  constructor(given: (credential: string) => void, command = "tailrace token") {
    const form = h(
      "form",
      {
        method: "dialog",
        onsubmit: () => {
          const credential = this.field.value.trim();
          this.field.value = "";
          if (credential !== "") given(credential);
        },
      },
      icon("key"),
      h("h2", { id: "signin-title" }, "Sign in"),
      this.why,
      h("label", { for: "credential" }, "Credential"),
      this.field,
      h("p", { class: "hint" }, "For development, ", h("code", {}, command), " prints one. This browser keeps a session in its place, not the credential itself."),
      h("button", { type: "submit", class: "primary" }, "Sign in"),
    );
    this.element = h("dialog", { class: "signin", "aria-labelledby": "signin-title" }, form);
  }

  ask(why: string): void {
    this.why.textContent = why;
    if (!this.element.open) this.element.showModal();
    this.field.focus();
  }
}
