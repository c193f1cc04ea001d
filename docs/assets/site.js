// What scrolls can be reached by keyboard, and every listing's buttons have a name of their own.
const label = () => {
  for (const region of document.querySelectorAll("pre > code, .md-typeset__scrollwrap")) region.tabIndex = 0;
  document.querySelectorAll(".md-code__nav").forEach((nav, at) => nav.setAttribute("aria-label", `Listing ${at + 1}`));
};
new MutationObserver(label).observe(document.body, { childList: true, subtree: true });
label();
