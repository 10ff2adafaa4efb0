// Searching in pages that are opened as files: a worker is made of its text, which docs/build.py puts above.
if (location.protocol === "file:") {
  const Plain = window.Worker
  window.Worker = class extends Plain {
    constructor() {
      super(URL.createObjectURL(new Blob([SEARCH_WORKER], { type: "text/javascript" })))
    }
  }
}

// For keyboards and screen readers: wide tables can be scrolled, and the buttons of each code have a name.
const mend = () => {
  for (const wide of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) wide.tabIndex = 0
  document.querySelectorAll("nav.md-code__nav").forEach((buttons, i) => (buttons.ariaLabel = `Code ${i + 1}`))
}
addEventListener("DOMContentLoaded", () => {
  mend()
  new MutationObserver(mend).observe(document.body, { childList: true, subtree: true })
})
