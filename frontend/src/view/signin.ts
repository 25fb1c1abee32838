import { signInWords, type SignInRefusal } from "../core/signInRefusal";
import { texts } from "../core/words";
import { h, icon, setText } from "./dom";

const PROBLEM = "signin-problem";
const HINT = "signin-hint";

export interface SignInParts {
  /** Resolves with null when the reader is signed in. */
  submitCredential(credential: string): Promise<SignInRefusal | null>;
  /** A credential that the server issues during development, with its user; null: it issues none. */
  offer(): Promise<{ credential: string; who: string } | null>;
  /** The reader is signed in, and the dialog is closed. */
  onSignIn(): void;
}

/** The dialog for a credential, which is sent to this server once and never stored. */
export class SignIn {
  readonly element: HTMLDialogElement;
  private readonly field = h("textarea", { id: "credential", rows: "4", spellcheck: "false", autocomplete: "off", required: true, oninput: () => this.showProblem(null) });
  private readonly why = h("p", { class: "why" });
  private readonly problem = h("p", { class: "problem", id: PROBLEM, role: "alert" });
  private readonly button = h("button", { type: "submit", class: "primary" }, texts().signIn);
  /** Signs in with the credential that the server issues. */
  private readonly offerButton = h("button", { type: "button", class: "secondary", hidden: true });

  /** `command`: prints a credential during development. */
  constructor(
    private readonly parts: SignInParts,
    command = "tailrace token",
  ) {
    const [beforeCommand = "", afterCommand = ""] = texts().credentialHint.split("{command}");
    const form = h(
      "form",
      { onsubmit: (event) => this.onSubmit(event) },
      icon("key"),
      h("h2", { id: "signin-title" }, texts().signIn),
      this.why,
      h("label", { for: "credential" }, texts().credential),
      this.field,
      this.problem,
      h("p", { class: "hint", id: HINT }, beforeCommand, h("code", {}, command), afterCommand),
      this.button,
      this.offerButton,
    );
    this.element = h("dialog", { class: "signin", "aria-labelledby": "signin-title" }, form);
    this.showProblem(null);
  }

  /** `refusal`: why another sign-in failed. */
  open(why: string, refusal: SignInRefusal | null = null): void {
    setText(this.why, why);
    if (!this.element.open) {
      this.showProblem(refusal);
      this.element.showModal();
      this.offerButton.hidden = true;
      void this.showOffer();
    }
    this.field.focus();
  }

  private async showOffer(): Promise<void> {
    const offer = await this.parts.offer();
    if (offer === null) return;
    setText(this.offerButton, texts().signInAs(offer.who));
    this.offerButton.onclick = () => void this.submit(offer.credential);
    this.offerButton.hidden = false;
  }

  private onSubmit(event: Event): void {
    event.preventDefault();
    const credential = this.field.value.trim();
    if (credential !== "") void this.submit(credential);
  }

  private async submit(credential: string): Promise<void> {
    if (this.button.disabled) return;
    this.button.disabled = true;
    const refusal = await this.parts.submitCredential(credential);
    this.button.disabled = false;
    if (refusal === null) {
      this.field.value = "";
      this.element.close();
      this.parts.onSignIn();
      return;
    }
    this.showProblem(refusal);
    this.field.focus();
    this.field.select();
  }

  private showProblem(refusal: SignInRefusal | null): void {
    setText(this.problem, refusal === null ? "" : signInWords(refusal));
    this.field.setAttribute("aria-invalid", String(refusal !== null));
    this.field.setAttribute("aria-describedby", refusal === null ? HINT : `${PROBLEM} ${HINT}`);
  }
}
