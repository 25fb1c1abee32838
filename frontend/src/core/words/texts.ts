import type { en } from "./en";

/** The texts that every language has. A text with numbers or names in it is a function of them. */
export type Texts = typeof en;
