// The order of search results: guides and answers before the reference, and the page of a norm first if its name was searched.
// A page whose title or name has all words of the query is moved up.
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,

  // By the start of a page's name; the first match counts.
  pages: [
    ["questions", 30],
    ["guide/", 25],
    ["install", 25],
    ["tutorial", 20],
    ["migration", 20],
    ["norms/", 15],
    ["glossary", 10],
    ["interop", 10],
    ["tasks/", 10],
    ["papers/", 5],
    ["api/public", 0],
    ["api/cli", 0],
    ["api/", -20],
    ["contributing", -10],
    ["changelog", -20],
  ],

  score: ([docname, title, , , score]) => {
    const query = (new URLSearchParams(window.location.search).get("q") || "").toLowerCase().trim();
    const words = query.split(/[^\p{Letter}\p{Number}_]+/u).filter((word) => word);
    const inTitle = words.length > 0 && words.every((word) => title.toLowerCase().includes(word));
    const weight = Scorer.pages.find(([start]) => docname.startsWith(start));
    const isNorm = docname === `norms/${query.split(/[:@]/)[0]}`;
    const inName = words.length > 0 && words.every((word) => docname.includes(word));
    // entries of the index are scored up to 100, which would put any function of that name first
    return Math.min(score, 25) + (weight ? weight[1] : 0) + (inTitle ? 15 : 0) + (inName ? 5 : 0) + (isNorm ? 100 : 0);
  },
};
