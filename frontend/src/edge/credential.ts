/* Where the credential comes from: the development gateway, a link's fragment, this browser's storage, or the reader. */

const STORED = "tailrace.credential";

export interface CredentialParts {
  base: string;
  storage: Storage | null;
  /** Only the reader can help. */
  wanted(): void;
  /** Whether the reader wants to be `who` from now on, as a link has it; `instead` is who they are now, if anybody. */
  switches(who: string, instead: string | null): Promise<boolean>;
  /** Who the reader is now; null: nobody. Called only when it changes. */
  changed(who: string | null): void;
}

export class Credential {
  private value: string | null = null;

  constructor(private readonly parts: CredentialParts) {}

  /** `fragment` is the credential that came with the address, if one did. */
  async start(fragment: string | null): Promise<void> {
    this.set(this.parts.storage?.getItem(STORED) ?? null);
    const gateway = await this.askGateway();
    // Whoever made the link can read what is asked under its credential, so it never takes the place of another by itself.
    if (gateway === "none" && fragment !== null && (await this.fromLink(fragment))) this.give(fragment);
    // A gateway that is away may have one to give when it is back; the reader is asked only when it said no.
    if (gateway === "none" && this.value === null) this.parts.wanted();
  }

  current(): string | null {
    return this.value;
  }

  /** Another tab signed in or out. */
  heard({ storageArea, key, newValue }: Pick<StorageEvent, "storageArea" | "key" | "newValue">): void {
    if (storageArea === this.parts.storage && (key === STORED || key === null)) this.set(key === null ? null : newValue);
  }

  give(credential: string): void {
    this.set(credential);
    try {
      this.parts.storage?.setItem(STORED, credential);
    } catch {
      // A full storage only means that the reader signs in again after a reload.
    }
  }

  /** Forgets the credential, in all tabs. */
  signOut(): void {
    this.parts.storage?.removeItem(STORED);
    this.set(null);
  }

  async renew(): Promise<boolean> {
    if ((await this.askGateway()) === "given") return true;
    this.parts.wanted();
    return false;
  }

  /** Looks for a newer credential without asking the reader. */
  async refresh(): Promise<void> {
    await this.askGateway();
  }

  private async fromLink(credential: string): Promise<boolean> {
    if (credential === this.value) return false;
    return this.parts.switches(subject(credential), this.value === null ? null : subject(this.value));
  }

  private set(credential: string | null): void {
    const before = this.value === null ? null : subject(this.value);
    this.value = credential;
    const now = credential === null ? null : subject(credential);
    if (now !== before) this.parts.changed(now);
  }

  private async askGateway(): Promise<"given" | "none" | "away"> {
    try {
      const answer = await fetch(`${this.parts.base}/dev/credential`, { cache: "no-store", credentials: "omit" });
      if (!answer.ok) return answer.status >= 500 ? "away" : "none";
      const { credential } = (await answer.json()) as { credential?: unknown };
      if (typeof credential !== "string") return "none";
      this.give(credential);
      return "given";
    } catch {
      return "away";
    }
  }
}

/** Whom a credential names. Only for the reader's eyes: the server alone decides whether it is good. */
export function subject(credential: string): string {
  try {
    const part = (credential.split(".")[1] ?? "").replace(/-/g, "+").replace(/_/g, "/");
    const bytes = Uint8Array.from(atob(part), (character) => character.charCodeAt(0));
    const claims: unknown = JSON.parse(new TextDecoder().decode(bytes));
    const found = typeof claims === "object" && claims !== null ? (claims as Record<string, unknown>)["sub"] : null;
    if (typeof found === "string" && found.trim() !== "") return found.slice(0, 255);
  } catch {
    // No credential of the usual form.
  }
  return "somebody unknown";
}

/** Takes a credential out of the address at once, so that it is neither kept in the history nor copied along. */
export function takeFragment(location: Location, history: History): string | null {
  const fields = new URLSearchParams(location.hash.slice(1));
  const credential = fields.get("credential");
  if (credential === null) return null;
  fields.delete("credential");
  const rest = fields.toString();
  history.replaceState(null, "", location.pathname + location.search + (rest === "" ? "" : `#${rest}`));
  return credential.trim() === "" ? null : credential.trim();
}
