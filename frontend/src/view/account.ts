import { texts } from "../core/words";
import { h, icon, setText } from "./dom";

/** Shows the user's name and signs them out. */
export class Account {
  private readonly who = h("span", { class: "words" });
  readonly element: HTMLElement;

  constructor(signOut: () => void) {
    const leave = h("button", { type: "button", class: "sign-out", onclick: () => signOut() }, texts().signOut);
    this.element = h("div", { class: "account", hidden: true }, icon("key"), this.who, leave);
  }

  show(who: string | null): void {
    this.element.hidden = who === null;
    setText(this.who, who ?? "");
    this.who.title = who === null ? "" : texts().signedInAs(who);
  }
}
