// Before the first paint, so that a reader who chose a theme never sees the other one flash.
try {
  const theme = localStorage.getItem("tailrace.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage is blocked: the system's theme it is.
}
