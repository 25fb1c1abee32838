/** The used part of a browser's storage. */
export class Memory {
  readonly records = new Map<string, string>();
  /** Whether writes fail; a text: those of keys with this prefix. */
  full: boolean | string = false;

  get length(): number {
    return this.records.size;
  }

  key(place: number): string | null {
    return [...this.records.keys()][place] ?? null;
  }

  getItem(key: string): string | null {
    return this.records.get(key) ?? null;
  }

  setItem(key: string, value: string): void {
    if (this.full === true || (this.full !== false && key.startsWith(this.full))) throw new Error("no room");
    this.records.set(key, value);
  }

  removeItem(key: string): void {
    this.records.delete(key);
  }
}
