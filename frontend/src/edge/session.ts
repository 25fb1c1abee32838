/* Who the reader is. The gateway keeps it in a cookie that no script can read; what is here is a name, and the token that
   every change needs besides the cookie. Credentials come from the development gateway, a link's fragment or the reader,
   go to the gateway once, and are kept nowhere. */

import { claims, signInRefusal, type SignInRefusal } from "../core/signInRefusal";
import { texts } from "../core/words";
import { retryAfter } from "./api";

/** Where former versions of the page kept the credential. */
const FORMER_KEY = "tailrace.credential";
/** Written at each change, so that the other tabs ask the gateway again. */
const CHANGE_KEY = "tailrace.session";
const TIMEOUT_MS = 15_000;

export interface SessionParts {
  base: string;
  storage: Storage | null;
  /** The user whose name is shown before the gateway was asked; null: none is. */
  initialUser: string | null;
  /** Only the reader can help. `refusal`: why the credential of a link was not taken; null: there was none. */
  requestSignIn(refusal: SignInRefusal | null): void;
  /** Whether the reader wants to be `who` from now on, as a link says; `instead` is the user signed in now, if there is one. */
  confirmSwitch(who: string, instead: string | null): Promise<boolean>;
  /** The reader signs out: from now on nothing of theirs is shown. */
  onSignOut(): void;
  /** The user signed in now; null: none. Called only when it is another one than before, or than `shown`. */
  onUserChange(who: string | null): void;
}

interface Who {
  subject: string;
  token: string;
}

type SessionState = Who | "signed out" | "away";

/** Of a request about the session. `status` 0: the gateway was not reached. */
interface SessionReply {
  status: number;
  body: Record<string, unknown>;
  retryAfterMs: number | null;
}

export class Session {
  private who: Who | null = null;
  /** Whose name is shown, which may be known before the gateway was reached. */
  private visibleUser: string | null;

  constructor(private readonly parts: SessionParts) {
    this.visibleUser = parts.initialUser;
  }

  /** `fragment` is the credential that came with the address, if one did. */
  async start(fragment: string | null): Promise<void> {
    const former = this.popFormerCredential();
    let state = this.setState(await this.request("GET"));
    let refusal: SignInRefusal | null = null;
    if (state === "signed out" && former !== null) ({ state } = await this.signIn(former));
    // The person who made the link can read what is asked under its credential, so it never takes the place of another by itself.
    if (fragment !== null && state !== "away" && (await this.confirmLink(fragment))) ({ state, refusal } = await this.signIn(fragment));
    if (state === "signed out") state = await this.signInByGateway();
    // A gateway that is away may have one to give when it is back; the reader is asked when it said no, or the link is spent.
    if (state === "signed out" || (state === "away" && refusal !== null)) this.parts.requestSignIn(refusal);
  }

  /** The headers of a change. */
  headers(): Record<string, string> {
    return this.who === null ? {} : { "X-Tailrace-Session": this.who.token };
  }

  /** The reader signs in. Null: they are signed in. */
  async submitCredential(credential: string): Promise<SignInRefusal | null> {
    const { refusal } = await this.signIn(credential);
    if (refusal === null) this.notifyTabs();
    return refusal;
  }

  /** false: the gateway could not be reached, and the reader is still signed in. */
  async signOut(): Promise<boolean> {
    // Another tab may have signed in since, which changes the token.
    this.setState(await this.request("GET"));
    if ((await this.request("DELETE")) === "away") return false;
    this.parts.onSignOut();
    this.setState("signed out");
    this.notifyTabs();
    return true;
  }

  /** Gets a session again after a refusal. false: the reader has to sign in, or is another user by now. */
  async renew(): Promise<boolean> {
    const before = this.who?.subject ?? null;
    let state = this.setState(await this.request("GET"));
    if (state === "signed out") state = await this.signInByGateway();
    if (state === "signed out") this.parts.requestSignIn(null);
    return state !== "signed out" && state !== "away" && (before === null || state.subject === before);
  }

  /** Looks for a session that lasts longer, without asking the reader. */
  async refresh(): Promise<void> {
    await this.signInByGateway();
  }

  /** Another tab signed in or out. */
  onStorage({ storageArea, key }: Pick<StorageEvent, "storageArea" | "key">): void {
    if (storageArea === this.parts.storage && key === CHANGE_KEY) void this.request("GET").then((state) => this.setState(state));
  }

  private async confirmLink(credential: string): Promise<boolean> {
    const who = subject(credential);
    return who !== this.who?.subject && this.parts.confirmSwitch(who, this.who?.subject ?? null);
  }

  private async signInByGateway(): Promise<SessionState> {
    try {
      const answer = await fetch(`${this.parts.base}/dev/credential`, { cache: "no-store", credentials: "omit" });
      if (!answer.ok) return answer.status >= 500 ? "away" : "signed out";
      const { credential } = (await answer.json()) as { credential?: unknown };
      if (typeof credential !== "string" || (this.who !== null && subject(credential) !== this.who.subject)) return "signed out";
      return (await this.signIn(credential)).state;
    } catch {
      return "away";
    }
  }

  private setState(state: SessionState): SessionState {
    if (state === "away") return state;
    this.who = state === "signed out" ? null : state;
    const now = this.who?.subject ?? null;
    if (now !== this.visibleUser) this.parts.onUserChange((this.visibleUser = now));
    return state;
  }

  private async signIn(credential: string): Promise<{ state: SessionState; refusal: SignInRefusal | null }> {
    const reply = await this.call("POST", credential);
    const state = this.setState(stateOf(reply));
    return { state, refusal: typeof state === "object" ? null : signInRefusal(reply.status, reply.retryAfterMs, credential, Date.now()) };
  }

  private async request(method: "GET" | "DELETE"): Promise<SessionState> {
    return stateOf(await this.call(method));
  }

  private async call(method: "GET" | "POST" | "DELETE", credential?: string): Promise<SessionReply> {
    try {
      const answer = await fetch(`${this.parts.base}/v1/session`, {
        method,
        headers: { ...this.headers(), ...(credential === undefined ? {} : { "Content-Type": "application/json" }) },
        body: credential === undefined ? null : JSON.stringify({ credential }),
        signal: AbortSignal.timeout(TIMEOUT_MS),
        cache: "no-store",
        credentials: "same-origin",
      });
      const body = answer.ok ? ((await answer.json()) as Record<string, unknown>) : {};
      return { status: answer.status, body, retryAfterMs: retryAfter(answer.headers) };
    } catch {
      return { status: 0, body: {}, retryAfterMs: null };
    }
  }

  private popFormerCredential(): string | null {
    const former = this.parts.storage?.getItem(FORMER_KEY) ?? null;
    if (former !== null) this.parts.storage?.removeItem(FORMER_KEY);
    return former;
  }

  private notifyTabs(): void {
    try {
      this.parts.storage?.setItem(CHANGE_KEY, `${Date.now()} ${Math.random()}`);
    } catch {
      // A full storage: the other tabs notice when the gateway refuses them.
    }
  }
}

function stateOf({ status, body: { subject: name, token } }: SessionReply): SessionState {
  if (status === 0 || status >= 500 || status === 429) return "away";
  return typeof name === "string" && typeof token === "string" ? { subject: name, token } : "signed out";
}

/** Whom a credential names. Only for the reader's eyes: the server alone decides whether it is good. */
export function subject(credential: string): string {
  const name = claims(credential)?.["sub"];
  return typeof name === "string" && name.trim() !== "" ? name.slice(0, 255) : texts().unknownUser;
}

/** Takes a credential out of the address at once, so that it is neither kept in the history nor copied along. */
export function popFragment(location: Location, history: History): string | null {
  const fields = new URLSearchParams(location.hash.slice(1));
  const credential = fields.get("credential");
  if (credential === null) return null;
  fields.delete("credential");
  const rest = fields.toString();
  history.replaceState(null, "", location.pathname + location.search + (rest === "" ? "" : `#${rest}`));
  return credential.trim() === "" ? null : credential.trim();
}
