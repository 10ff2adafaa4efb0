"""Violations of WCAG on pages, as axe finds them.

Four fifths of axe's time go to the contrast of texts, and most texts of a page are as those of another one. So the
contrast of each kind of text is looked at once, on the first page that has it; all other rules on each page.
"""

from __future__ import annotations

from typing import Any

from axe_playwright_python.base import AXE_SCRIPT

OTHER_RULES: dict[str, dict[str, Any]] = {
    "light": {"rules": {"color-contrast": {"enabled": False}}},
    "dark": {"runOnly": ["link-in-text-block"]},
}
THEMES = tuple(OTHER_RULES)
LOOK = "async options => (await axe.run({...options, resultTypes: ['violations']})).violations"
# A kind of text: its colour and size, and what is behind it. Hidden text is of no kind.
KINDS = """() => {
  const plain = "rgba(0, 0, 0, 0),none,1,static,none,false,null;";
  const grounds = new Map([[null, ""]]);
  const ground = element => {
    if (!grounds.has(element)) {
      const style = getComputedStyle(element);
      const own = [
        style.backgroundColor, style.backgroundImage, style.opacity, style.position, style.filter,
        element.matches(":disabled"), element.ariaDisabled,
      ].join() + ";";
      grounds.set(element, (own === plain ? "" : own) + ground(element.parentElement));
    }
    return grounds.get(element);
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const elements = new Set(document.querySelectorAll("input, select, textarea, button"));
  while (texts.nextNode()) if (texts.currentNode.data.trim()) elements.add(texts.currentNode.parentElement);
  window.kindsOfText = new Map();
  for (const element of elements) {
    if (!element.checkVisibility({visibilityProperty: true, opacityProperty: true})) continue;
    const style = getComputedStyle(element);
    const kind = [element.localName, style.color, style.fontSize, style.fontWeight, style.textShadow].join() + ";"
      + ground(element);
    if (!window.kindsOfText.has(kind)) window.kindsOfText.set(kind, element);
  }
  return [...window.kindsOfText.keys()];
}"""
LOOK_AT_CONTRAST = """async kinds => (await axe.run(
  {include: kinds.map(kind => window.kindsOfText.get(kind))},
  {runOnly: ["color-contrast"], resultTypes: ["violations"]},
)).violations"""


class Accessibility:
    """Looks at the pages of one site, and remembers of which kinds of text it has seen the contrast."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()  # theme and kind

    def violations(self, page: Any, theme: str = "light") -> list[str]:
        """What is wrong with the page that is shown, in this theme; it stays in it."""
        page.emulate_media(color_scheme=theme)
        if page.evaluate("typeof axe === 'undefined'"):
            page.evaluate(AXE_SCRIPT)
        found = page.evaluate(LOOK, OTHER_RULES[theme])
        fresh = [kind for kind in page.evaluate(KINDS) if (theme, kind) not in self._seen]
        if fresh:
            found += page.evaluate(LOOK_AT_CONTRAST, fresh)
            self._seen.update((theme, kind) for kind in fresh)
        return [
            f"{theme}: {one['id']}: {node['html'][:150]}: {node['failureSummary']}"
            for one in found
            for node in one["nodes"]
        ]
