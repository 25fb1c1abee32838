/* The user whose chats this browser shows, and by whose name, before the gateway is asked and without a network. */

const KEY = "tailrace.user";

export function loadUser(storage: Storage | null): string | null {
  return storage?.getItem(KEY) ?? null;
}

export function storeUser(storage: Storage | null, who: string): void {
  // First, because a full storage keeps what it has: the next user must not find the name and the chats of the one before.
  storage?.removeItem(KEY);
  try {
    storage?.setItem(KEY, who);
  } catch {
    // A full storage: after a reload the gateway is asked who this is.
  }
}

/** They sign out. */
export function forgetUser(storage: Storage | null): void {
  storage?.removeItem(KEY);
}
