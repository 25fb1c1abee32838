import type { Conversation } from "../core/conversation";
import { texts } from "../core/words";
import type { Share, Shares } from "../edge/shares";
import { copyText, h, icon, setText } from "./dom";

const DAY_S = 24 * 3600;
const DAYS = [1, 7, 30, 365] as const;
const DEFAULT_DAYS = 30;

/** Creates and revokes links that show a chat to others. */
export class ShareSection {
  readonly element = h("section", {});
  private readonly days = h("select", { "aria-label": texts().linkDuration }, ...DAYS.map((days) => h("option", { value: String(days), ...(days === DEFAULT_DAYS ? { selected: true } : {}) }, texts().days(days))));
  private readonly list = h("ul", { class: "links" });
  private readonly trouble = h("p", { class: "trouble", role: "alert" });
  /** Whether the server offers links. */
  isOffered = false;
  /** The conversation's id on the server; empty: none. */
  private remote = "";

  constructor(private readonly shares: Pick<Shares, "share" | "shares" | "unshare">) {
    const make = h("button", { type: "button", onclick: () => void this.createLink() }, texts().createLink);
    this.element.append(h("h3", {}, texts().shareChat), h("p", { class: "hint" }, texts().shareHint), h("div", { class: "row" }, this.days, make), this.list, this.trouble);
  }

  show({ remote, turns }: Conversation): void {
    this.remote = remote ?? "";
    this.element.hidden = !this.isOffered || remote === null || turns.length === 0;
    this.list.replaceChildren();
    setText(this.trouble, "");
    if (remote !== null && this.isOffered) void this.load(remote);
  }

  private async load(remote: string): Promise<void> {
    try {
      const shares = await this.shares.shares(remote);
      if (remote === this.remote) this.list.replaceChildren(...shares.map((share) => this.row(share)));
    } catch {
      this.list.replaceChildren(); // creating a link reports what is wrong
    }
  }

  private async createLink(): Promise<void> {
    const remote = this.remote;
    setText(this.trouble, "");
    try {
      const share = await this.shares.share(remote, Number(this.days.value) * DAY_S);
      if (remote !== this.remote) return;
      const row = this.row(share);
      this.list.prepend(row);
      row.querySelector("button")?.focus();
    } catch {
      setText(this.trouble, texts().noLink);
    }
  }

  private row(share: Share): HTMLElement {
    const ends = new Date(share.endsAt).toLocaleDateString(texts().code, { dateStyle: "medium" });
    const copy = h("button", { type: "button", onclick: () => void this.copy(copy, share.url) }, icon("copy"), texts().copyLink);
    const revoke = h("button", { type: "button", onclick: () => void this.revoke(row, share.id) }, texts().revokeLink);
    const row = h("li", {}, h("a", { href: share.url, target: "_blank", rel: "noopener" }, texts().linkUntil(ends)), copy, revoke);
    return row;
  }

  private async copy(button: HTMLElement, url: string): Promise<void> {
    if (await copyText(url)) button.replaceChildren(icon("check"), texts().copied);
  }

  private async revoke(row: HTMLElement, id: string): Promise<void> {
    setText(this.trouble, "");
    try {
      await this.shares.unshare(this.remote, id);
      row.remove();
      this.days.focus();
    } catch {
      setText(this.trouble, texts().notChanged);
    }
  }
}
