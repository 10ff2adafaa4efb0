// Searching in pages that are opened as files: a worker is made of its text, which docs/build.py puts above.
if (location.protocol === "file:") {
  const Plain = window.Worker
  window.Worker = class extends Plain {
    constructor() {
      super(URL.createObjectURL(new Blob([SEARCH_WORKER], { type: "text/javascript" })))
    }
  }
}

// For keyboards and screen readers: wide tables can be scrolled, the buttons of each code have a name, and the labels
// that open something on narrow pages are buttons.
const OPENERS = { __drawer: "Menu", __search: "Search", __toc: "On this page" }
const mend = () => {
  for (const wide of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) wide.tabIndex = 0
  document.querySelectorAll("nav.md-code__nav").forEach((buttons, i) => (buttons.ariaLabel = `Code ${i + 1}`))
  for (const label of document.querySelectorAll("label.md-header__button:not([tabindex]), label.md-sidebar-button:not([tabindex])")) {
    if (!(label.htmlFor in OPENERS)) continue
    label.tabIndex = 0
    label.role = "button"
    label.ariaLabel = OPENERS[label.htmlFor]
  }
}
const opened = () => document.querySelector("#__drawer:checked, #__toc:checked")
addEventListener("keydown", (event) => {
  const label = event.target.closest?.("label[role=button]")
  if (label && (event.key === "Enter" || event.key === " ")) {
    event.preventDefault()
    event.stopImmediatePropagation() // Zensical would click once more
    label.click()
    if (label.htmlFor === "__drawer" && opened()) document.querySelector(".md-sidebar--primary .md-nav__link[href]").focus()
  } else if (event.key === "Escape" && opened()) {
    const open = opened()
    open.click()
    document.querySelector(`label[role=button][for="${open.id}"]`).focus()
  }
}, true)
addEventListener("DOMContentLoaded", () => {
  mend()
  new MutationObserver(mend).observe(document.body, { childList: true, subtree: true })
})
