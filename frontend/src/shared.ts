/* Composition root of the page that shows a shared chat. It has no session and no socket, and reads
   only language and theme from the storage. */

import "./style.css";
import "./shared.css";
import { languageOf, preference, texts, useLanguage } from "./core/words";
import { readLink, tokenIn } from "./edge/sharedLink";
import { storageOf } from "./edge/store";
import { SharedView } from "./view/sharedView";

async function begin(): Promise<void> {
  await useLanguage(languageOf(preference(storageOf("localStorage")), navigator.languages));
  document.documentElement.lang = texts().code;
  const root = document.getElementById("app");
  if (root === null) throw new Error("the page has no place for the chat");
  const token = tokenIn(location.pathname);
  const view = new SharedView(root, () => void show());
  const show = async (): Promise<void> => {
    view.show(token === null ? { kind: "gone" } : await readLink(token));
  };
  await show();
}

void begin();
