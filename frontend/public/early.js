// What would come too late from the page's modules.
try {
  // A reader who chose a theme never sees the other one flash.
  const theme = localStorage.getItem("tailrace.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  // What draws the chat that is about to be opened comes together with the page.
  if (location.hash.startsWith("#c=") || localStorage.getItem("tailrace.current")) {
    for (const link of document.querySelectorAll("link[data-chat]")) link.rel = "modulepreload";
  }
} catch {
  // Storage is blocked: the system's theme it is.
}
