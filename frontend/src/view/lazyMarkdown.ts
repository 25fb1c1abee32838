/* What draws Markdown is loaded when there is a text to draw. Until it is loaded, and where it
   cannot be loaded, the source is shown. */

import { Lazy } from "./lazy";

export const markdown = new Lazy(() => import("./markdown"));
