/* Stores the user whose chats and name this browser shows before the first reply of the gateway,
   and without a network. */

const KEY = "tailrace.user";

export function loadUser(storage: Storage | null): string | null {
  return storage?.getItem(KEY) ?? null;
}

export function storeUser(storage: Storage | null, who: string): void {
  // Removed first: if the storage is full, the next user must not see the former user's name and
  // chats.
  storage?.removeItem(KEY);
  try {
    storage?.setItem(KEY, who);
  } catch {
    // The storage is full: after a reload the gateway reports the user.
  }
}

/** Called at sign-out. */
export function forgetUser(storage: Storage | null): void {
  storage?.removeItem(KEY);
}
