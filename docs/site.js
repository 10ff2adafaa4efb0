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
// that open something on narrow pages have a button in them.
const OPENERS = { __drawer: "Menu", __search: "Search", __toc: "On this page" }
const mend = () => {
  for (const wide of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) wide.tabIndex = 0
  document.querySelectorAll("nav.md-code__nav").forEach((buttons, i) => (buttons.ariaLabel = `Code ${i + 1}`))
  for (const label of document.querySelectorAll("label.md-header__button, label.md-sidebar-button")) {
    if (!(label.htmlFor in OPENERS) || label.querySelector("button")) continue
    const button = document.createElement("button")
    Object.assign(button, { type: "button", className: "opener", ariaLabel: OPENERS[label.htmlFor] })
    button.append(...label.childNodes)
    button.addEventListener("click", (event) => {
      event.stopPropagation()
      label.click()
      if (label.htmlFor === "__drawer" && opened()) document.querySelector(".md-sidebar--primary .md-nav__link[href]").focus()
    })
    label.append(button)
  }
}
const opened = () => document.querySelector("#__drawer:checked, #__toc:checked")
addEventListener("keydown", (event) => {
  const open = opened()
  if (event.key !== "Escape" || !open) return
  open.click()
  document.querySelector(`label[for="${open.id}"] .opener`).focus()
})
addEventListener("DOMContentLoaded", () => {
  mend()
  new MutationObserver(mend).observe(document.body, { childList: true, subtree: true })
})
