/* Stores the gateway's last settings for the page, so that the page starts without a network. They
   are the same for every user. */

import { readConfig, type Config } from "./api";

const KEY = "tailrace.config";

export function storeConfig(storage: Storage | null, config: Config): void {
  try {
    storage?.setItem(KEY, JSON.stringify(configBody(config)));
  } catch {
    // The storage is full: the models are not listed offline.
  }
}

// In the gateway's form, so that one function parses both.
function configBody({ pushUrls, models, defaultModel, takes, version, conversations, titles, shares, searches }: Config): object {
  const each = Object.entries(takes).map(([model, { images, files, maxOutputTokens }]) => [model, { images, files, max_output_tokens: maxOutputTokens }]);
  return { push_urls: pushUrls, models, default_model: defaultModel, takes: Object.fromEntries(each) as object, version, conversations, titles, shares, searches };
}

export function loadConfig(storage: Storage | null): Config | null {
  try {
    const json: unknown = JSON.parse(storage?.getItem(KEY) ?? "null");
    return json === null ? null : readConfig(json);
  } catch {
    return null;
  }
}
