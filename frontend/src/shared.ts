/* Composition root of the page that shows what a link leads to. It has nothing of the chat page: no session, no storage but
   for the reader's language and theme, no socket. */

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
