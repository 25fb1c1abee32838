/* Where the credential comes from: the development gateway, a link's fragment, this browser's storage, or the reader. */

const STORED = "tailrace.credential";

export class Credential {
  private value: string | null = null;

  constructor(
    private readonly base: string,
    private readonly storage: Storage | null,
    /** Called when only the reader can help. */
    private readonly wanted: () => void,
  ) {}

  /** `fragment` is the credential that came with the address, if one did. */
  async start(fragment: string | null): Promise<void> {
    this.value = this.storage?.getItem(STORED) ?? null;
    const gateway = await this.askGateway();
    if (gateway === "none" && fragment !== null) this.give(fragment);
    // A gateway that is away may have one to give when it is back; the reader is asked only when it said no.
    if (gateway === "none" && this.value === null) this.wanted();
  }

  current(): string | null {
    return this.value;
  }

  give(credential: string): void {
    this.value = credential;
    try {
      this.storage?.setItem(STORED, credential);
    } catch {
      // A full storage only means that the reader signs in again after a reload.
    }
  }

  async renew(): Promise<boolean> {
    if ((await this.askGateway()) === "given") return true;
    this.wanted();
    return false;
  }

  /** Looks for a newer credential without asking the reader. */
  async refresh(): Promise<void> {
    await this.askGateway();
  }

  private async askGateway(): Promise<"given" | "none" | "away"> {
    try {
      const answer = await fetch(`${this.base}/dev/credential`, { cache: "no-store", credentials: "omit" });
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
