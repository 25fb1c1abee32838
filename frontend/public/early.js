// Runs before the page's modules, which would be too late for this.
try {
  // Sets the reader's theme before the first paint.
  const theme = localStorage.getItem("tailrace.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  // Loads the Markdown code together with the page where the page opens with a chat.
  if (location.hash.startsWith("#c=") || localStorage.getItem("tailrace.current")) {
    for (const link of document.querySelectorAll("link[data-chat]")) link.rel = "modulepreload";
  }
} catch {
  // The storage is blocked: the system's theme applies.
}
