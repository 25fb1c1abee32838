/* The session of the reader. The gateway stores it in a cookie that no script can read. This page
   has the user's name, and the token that every change needs in addition to the cookie. A
   credential comes from the development gateway, the fragment of a link or the reader. It is sent
   to the gateway once and never stored. */

import { claims, signInRefusal, type SignInRefusal } from "../core/signInRefusal";
import { texts } from "../core/words";
import { retryAfter } from "./api";

/** The key under which former versions of the page stored the credential. */
const FORMER_KEY = "tailrace.credential";
/** Written when the reader signs in or out, so that other tabs request the session again. */
const CHANGE_KEY = "tailrace.session";
/** The start of its value from a sign-out to the next sign-in. In between, the page accepts no
    credential from the gateway by itself. */
const SIGNED_OUT = "out ";
const TIMEOUT_MS = 15_000;

export interface SessionParts {
  base: string;
  storage: Storage | null;
  /** The user whose name is shown before the first reply of the gateway; null: none. */
  initialUser: string | null;
  /** The reader must sign in. `refusal`: why the credential of a link was refused; null: there was
      none. */
  requestSignIn(refusal: SignInRefusal | null): void;
  /** Whether the reader agrees to become `who`, the user in a link. `instead`: the user who is
      signed in now; null: none. */
  confirmSwitch(who: string, instead: string | null): Promise<boolean>;
  /** The reader signs out: their data must disappear. */
  onSignOut(): void;
  /** Another user is signed in than before, or than `initialUser`; null: none. */
  onUserChange(who: string | null): void;
}

interface Who {
  subject: string;
  token: string;
}

type SessionState = Who | "signed out" | "away";

/** The reply to a request about the session. `status` 0: the gateway was not reached. */
interface SessionReply {
  status: number;
  body: Record<string, unknown>;
  retryAfterMs: number | null;
}

export class Session {
  private who: Who | null = null;
  /** Whether the gateway last reported that no user is signed in. */
  isSignedOut = false;
  /** The user whose name is shown. It may be known before the gateway is reached. */
  private visibleUser: string | null;

  constructor(private readonly parts: SessionParts) {
    this.visibleUser = parts.initialUser;
  }

  /** `fragment`: the credential in the address; null: none. */
  async start(fragment: string | null): Promise<void> {
    const former = this.popFormerCredential();
    let state = this.setState(await this.request("GET"));
    let refusal: SignInRefusal | null = null;
    if (state === "signed out" && former !== null) ({ state } = await this.signIn(former));
    // The author of the link can read what is asked with its credential. So it replaces another
    // user only if the reader agrees.
    if (fragment !== null && state !== "away" && (await this.confirmLink(fragment))) {
      ({ state, refusal } = await this.signIn(fragment));
      if (refusal === null) this.notifyTabs("in ");
    }
    if (state === "signed out") state = await this.signInByGateway();
    // An unreachable gateway may issue a credential later. The reader must sign in when it refused,
    // or when the link was used.
    if (state === "signed out" || (state === "away" && refusal !== null)) this.parts.requestSignIn(refusal);
  }

  /** The headers that a change needs. */
  headers(): Record<string, string> {
    return this.who === null ? {} : { "X-Tailrace-Session": this.who.token };
  }

  /** The reader signs in. Null: it worked. */
  async submitCredential(credential: string): Promise<SignInRefusal | null> {
    const { refusal } = await this.signIn(credential);
    if (refusal === null) this.notifyTabs("in ");
    return refusal;
  }

  /** A credential that the gateway issues during development; null: none, or it was not reached. */
  async offeredCredential(): Promise<string | null> {
    return this.requestCredential().catch(() => null);
  }

  /** Finds out whether another tab signed in or out. */
  async check(): Promise<void> {
    this.setState(await this.request("GET"));
  }

  /** false: the gateway could not be reached, and the reader is still signed in. */
  async signOut(): Promise<boolean> {
    // Another tab may have signed in meanwhile, which changes the token.
    this.setState(await this.request("GET"));
    if ((await this.request("DELETE")) === "away") return false;
    this.parts.onSignOut();
    this.notifyTabs(SIGNED_OUT);
    this.setState("signed out");
    return true;
  }

  /** Gets a new session after a refusal. false: the reader must sign in, or is another user now. */
  async renew(): Promise<boolean> {
    const before = this.visibleUser;
    let state = this.setState(await this.request("GET"));
    if (state === "signed out") state = await this.signInByGateway();
    if (state === "signed out") this.parts.requestSignIn(null);
    return state !== "signed out" && state !== "away" && state.subject === before;
  }

  /** Tries to get a session that lasts longer, without the reader. */
  async refresh(): Promise<void> {
    await this.signInByGateway();
  }

  /** Another tab signed in or out. */
  onStorage({ storageArea, key }: Pick<StorageEvent, "storageArea" | "key">): void {
    if (storageArea === this.parts.storage && key === CHANGE_KEY) void this.check();
  }

  private async confirmLink(credential: string): Promise<boolean> {
    const who = subject(credential);
    return who !== this.who?.subject && this.parts.confirmSwitch(who, this.who?.subject ?? null);
  }

  private async signInByGateway(): Promise<SessionState> {
    if (this.parts.storage?.getItem(CHANGE_KEY)?.startsWith(SIGNED_OUT) === true) return "signed out";
    try {
      const credential = await this.requestCredential();
      if (credential === null || (this.who !== null && subject(credential) !== this.who.subject)) return "signed out";
      return (await this.signIn(credential)).state;
    } catch {
      return "away";
    }
  }

  /** null: the gateway issues none. Throws where it could not be reached. */
  private async requestCredential(): Promise<string | null> {
    const answer = await fetch(`${this.parts.base}/dev/credential`, { cache: "no-store", credentials: "omit" });
    if (answer.status >= 500) throw new Error(`status ${answer.status}`);
    const credential = answer.ok ? ((await answer.json()) as { credential?: unknown }).credential : null;
    return typeof credential === "string" ? credential : null;
  }

  private setState(state: SessionState): SessionState {
    if (state === "away") return state;
    this.isSignedOut = state === "signed out";
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

  private notifyTabs(state: "in " | typeof SIGNED_OUT): void {
    try {
      this.parts.storage?.setItem(CHANGE_KEY, `${state}${Date.now()} ${Math.random()}`);
    } catch {
      // The storage is full: the other tabs notice when the gateway refuses their requests. The
      // removed name of the user leaves space for a sign-out.
    }
  }
}

function stateOf({ status, body: { subject: name, token } }: SessionReply): SessionState {
  if (status === 0 || status >= 500 || status === 429) return "away";
  return typeof name === "string" && typeof token === "string" ? { subject: name, token } : "signed out";
}

/** The user in a credential, unverified: only for display. */
export function subject(credential: string): string {
  const name = claims(credential)?.["sub"];
  return typeof name === "string" && name.trim() !== "" ? name.slice(0, 255) : texts().unknownUser;
}

/** Removes a credential from the address, so that it is not in the history and not copied with the
    address. Returns it. */
export function popFragment(location: Location, history: History): string | null {
  const fields = new URLSearchParams(location.hash.slice(1));
  const credential = fields.get("credential");
  if (credential === null) return null;
  fields.delete("credential");
  const rest = fields.toString();
  history.replaceState(null, "", location.pathname + location.search + (rest === "" ? "" : `#${rest}`));
  return credential.trim() === "" ? null : credential.trim();
}
