// The page of many episodes, or of what else tables over a folder describe: rows to filter and sort, a page at a time.
(() => {
  const AT_ONCE = 100, SHOWN = 12, SHOWN_OF_OTHERS = 40;
  const LABELS = {
    container: "Container", language_instruction: "Instruction", embodiment: "Embodiment", success: "Outcome",
    num_frames: "Frames", fps: "Frames/s", total_reward: "Reward", state_dim: "State", action_dim: "Action",
    episode_id: "Id", episode_name: "Name", env_id: "Environment", channels: "Channels",
    cameras: "Cameras",
  };
  const MINOR = ["fps", "state_dim", "action_dim", "episode_id", "env_name", "channels", "cameras"];
  // The columns of text that conditions of glassfs select know.
  const TEXTS = ["container", "episode_name", "embodiment", "env_name", "language_instruction", "channels", "cameras", "splits"];
  const CONDITIONS = { true: "success", false: "not success", null: "success is null" };
  const HIDDEN = ["container", "position", "place"];
  const OUTCOMES = { true: ["good", "succeeded"], false: ["bad", "failed"], null: ["none", "unknown"] };
  const head = (name) => {
    if (name) document.title = at("title").textContent = name;
  };
  const asText = (value) => {
    if (value === null || value === undefined) return "";
    if (Array.isArray(value)) return value.map(asText).join(", ");
    return typeof value === "object" ? JSON.stringify(value) : String(value);
  };
  const asNumber = (value) => String(Number.isInteger(value) ? value : Number(value.toPrecision(4)));

  const asked = () => new URLSearchParams(location.hash.slice(1));

  let isBelow = false, hasImages = false, picked = [], pair = [];
  let texts = [], source = "SOURCE";
  let isServed = false, isOfEpisodes = true, thing = "episode", rows = [], names = [], shown = [], page = 0, sorted = { name: "", isDown: false };

  class Row {
    constructor(values, number, facts) {
      this.values = new Map(Array.isArray(values)
        ? facts.names.map((name, place) => [name, values[place]]) : Object.entries(values));
      // Of a selection, rows are only some of the container's episodes.
      this.number = number = (facts.directory !== null && this.values.get("position")) || number;
      this.label = String(number);
      this.folder = "";
      this.place = `${facts.directory}/${number}`;
      if (facts.directory === null) {
        const place = String(this.values.get("place")), container = asText(this.values.get("container"));
        this.place = `./${place.split("/").map(quoted).join("/")}`;
        const parts = (place.startsWith(container) ? container : place).split("/");
        this.label = parts.pop() + (place === container ? "" : ` · ${asText(this.values.get("position"))}`);
        this.folder = parts.join("/");
      }
      this.isNumbered = facts.directory !== null;
      this.up = this.place.split("/").length - 1;
      this.words = [this.label, ...this.values.values()].map(asWords).join("\n").toLowerCase();
    }

    key(name) {
      if (name === "label") return this.isNumbered ? this.number : `${this.folder}/${this.label}`;
      const value = this.values.get(name);
      return value === undefined ? null : Array.isArray(value) ? asText(value) : value;
    }
  }

  const asWords = (value) => (typeof value === "number" || typeof value === "boolean" ? "" : asText(value));

  function quoted(part) {
    try {
      return encodeURIComponent(part);
    } catch {
      return "";
    }
  }

  window.glassfs = {
    rows({ rows: data, facts }) {
      isOfEpisodes = (facts.table ?? "episodes") === "episodes";
      thing = isOfEpisodes ? "episode" : "row";
      rows = data.slice(0, -1).map((values, number) => new Row(values, number, facts));
      // Leaves out columns without values.
      const all = new Set(facts.names);
      for (const row of rows) for (const name of row.values.keys()) all.add(name);
      const first = Object.keys(LABELS);
      const rank = (name) => (first.includes(name) ? first.indexOf(name) : first.length);
      const hasValue = (name) => rows.some((row) => asText(row.values.get(name)) !== "");
      hasImages = isOfEpisodes && rows.some(mayHaveImage);
      names = [...all].filter((name) => !HIDDEN.includes(name) && hasValue(name));
      names.sort((a, b) => rank(a) - rank(b));
      names = names.slice(0, isOfEpisodes ? SHOWN : SHOWN_OF_OTHERS);
      texts = [facts.directory === null ? "container" : "", ...names].filter((name) => TEXTS.includes(name));
      source = inShell((facts.title || source).replace(/^-/, "./-"));
      isServed = facts.where !== undefined;
      const [total, here] = [facts.total, rows.length].map((count) => count.toLocaleString("en"));
      if (isServed) note(`Of ${total} ${thing}s ${here} are here${facts.where ? `, where ${facts.where}` : ""}. Enter in the filter searches all.`);
      else if (facts.total > rows.length) note(`There are ${total} ${thing}s, too many for a page: the first ${here} are here.`);
      head(facts.title);
      addTables(facts.tables ?? [], facts.table);
      if (facts.omitted) note(`Containers that not every user may read are left out: ${facts.omitted}.`);
      at("selection").hidden = !facts.selection;
      at("selection").lastElementChild.textContent = facts.selection;
      if (facts.error) note(`Some containers could not be read: ${facts.error}`);
      at("outcome").hidden = !names.includes("success");
      at("compare").hidden = at("copy").hidden = at("choose").hidden = !isOfEpisodes;
      addHeads();
      isBelow = facts.directory !== null && depthInMount() > 0;
      route();
      addEventListener("hashchange", route);
    },
  };
  addEventListener("error", (event) => {
    if (event.target instanceof HTMLScriptElement) {
      at("count").textContent = "";
      note("The episodes cannot be listed: data.js, beside this page, cannot be read.");
    }
  }, true);

  const labelOf = (name) => LABELS[name] || name.replaceAll("_", " ");
  const mayHaveImage = (row) => asText(row.values.get("cameras") ?? "unknown") !== "";
  const isNumeric = (name) => rows.every((row) => typeof (row.values.get(name) ?? 0) === "number");

  function addHeads() {
    if (isOfEpisodes) made("th", at("heads"), "pick").setAttribute("aria-label", "Compare");
    if (hasImages) made("th", at("heads"), "thumb").setAttribute("aria-label", "First frame");
    for (const name of ["label", ...names]) {
      const head = made("th", at("heads"), isNumeric(name) && name !== "label" ? "number" : "");
      head.scope = "col";
      if (MINOR.includes(name)) head.classList.add("minor");
      head.dataset.name = name;
      const button = made("button", head, "", name === "label" ? (isOfEpisodes ? "Episode" : LABELS.container) : labelOf(name));
      button.onclick = () => {
        sorted = { name, isDown: sorted.name === name && !sorted.isDown };
        page = 0;
        filter();
      };
    }
  }

  function compared(a, b) {
    if (a === null || b === null) return (a === null) - (b === null);
    const sign = sorted.isDown ? -1 : 1;
    if (typeof a === "string" && typeof b === "string") return sign * order.compare(a, b);
    return sign * (a < b ? -1 : a > b ? 1 : 0);
  }
  const order = new Intl.Collator("en", { numeric: true });

  const inShell = (text) => (/^[\w./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

  // Returns the condition of the page's filter; empty if there is no filter, or no column for it.
  function condition(words, outcome) {
    if (words.length && !texts.length) return "";
    const columns = texts.map((name) => (name === "language_instruction" ? "task" : name));
    // A text of JSON is one of the condition, too.
    const containing = (word) => `(${columns.map((name) => `${name} ~ ${JSON.stringify(word)}`).join(" or ")})`;
    return [...words.map(containing), ...(outcome ? [CONDITIONS[outcome]] : [])].join(" and ");
  }

  const filterWords = () => at("filter").value.toLowerCase().split(/\s+/).filter(Boolean);

  function select() {
    const words = filterWords(), outcome = at("outcome").value, selected = condition(words, outcome);
    at("copy").title = selected && `glassfs select --where ${inShell(selected)} ${source}`;
    at("copy").disabled = !at("copy").title;
    shown = rows.filter((row) => words.every((word) => row.words.includes(word))
      && (!outcome || String(row.values.get("success") ?? null) === outcome));
    if (sorted.name) shown.sort((a, b) => compared(a.key(sorted.name), b.key(sorted.name)));
  }

  function filter() {
    select();
    for (const head of at("heads").children) {
      if (head.dataset.name === sorted.name) head.setAttribute("aria-sort", sorted.isDown ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
    const all = rows.length.toLocaleString("en"), plural = rows.length === 1 ? "" : "s";
    at("count").textContent = shown.length === rows.length
      ? `${all} ${thing}${plural}` : `${shown.length.toLocaleString("en")} of ${all} ${thing}${plural}`;
    show();
  }

  function show() {
    const pages = Math.max(1, Math.ceil(shown.length / AT_ONCE));
    page = Math.min(Math.max(0, page), pages - 1);
    const first = page * AT_ONCE, options = state();
    at("rows").replaceChildren(...shown.slice(first, first + AT_ONCE).map((row, place) => line(row, first + place, options)));
    at("page").textContent = `${page + 1} / ${pages}`;
    at("before").disabled = page === 0;
    at("after").disabled = page === pages - 1;
    document.querySelector(".pager").hidden = pages === 1;
    remember();
  }

  // Returns the address of an episode's page, with what that needs to lead back here and to the next one of the list.
  function address(row, place, options) {
    const isPlain = row.isNumbered && !sorted.name && shown.length === rows.length;
    const words = { up: row.up, number: row.number, ...(isPlain ? {} : { at: place }), of: shown.length };
    return `${row.place}/index.html#${new URLSearchParams(options ? { ...words, list: options } : words)}`;
  }

  function line(row, place, options) {
    const element = document.createElement("tr");
    if (isOfEpisodes) addPick(element, row);
    if (hasImages) addPoster(made("td", element, "thumb"), row);
    else element.className = "plain";
    const head = made("th", element);
    head.scope = "row";
    const link = made("a", head, "", row.label);
    link.dir = "auto";
    if (row.folder) made("div", head, "soft", row.folder).dir = "auto";
    link.href = isOfEpisodes ? address(row, place, options) : `${row.place}/`;
    for (const name of names) {
      const value = row.values.get(name) ?? null;
      const cell = made("td", element);
      cell.dataset.name = labelOf(name);
      if (MINOR.includes(name)) cell.classList.add("minor");
      if (name === "language_instruction") cell.classList.add("title");
      if (name === "success") {
        const [kind, text] = OUTCOMES[String(value)] ?? OUTCOMES[null];
        made("span", cell, `badge ${kind}`, text);
        cell.removeAttribute("data-name");
      } else if (typeof value === "number") {
        cell.classList.add("number");
        cell.textContent = asNumber(value);
      } else if (asText(value)) {
        cell.classList.add("text");
        const text = made("div", cell, "", asText(value));
        text.dir = "auto";
        // The link covers the row, so the whole of a text that may be cut is the title of that.
        if (text.textContent.length > 40) element.title += `${cell.dataset.name}: ${text.textContent}\n`;
      }
    }
    return element;
  }

  function addPick(element, row) {
    const pick = row.pick = made("input", made("td", element, "pick"));
    pick.type = "checkbox";
    pick.setAttribute("aria-label", `Compare ${row.label}`);
    pick.checked = picked.includes(row);
    pick.onchange = () => {
      picked = picked.filter((other) => other !== row);
      if (pick.checked) picked.push(row);
      // A third one takes the place of the first.
      if (picked.length > 2) picked.shift().pick.checked = false;
      at("compare").disabled = picked.length < 2;
    };
  }

  function addPoster(cell, row) {
    const collapse = () => cell.parentElement.classList.add("plain");
    if (!mayHaveImage(row)) {
      collapse();
      return;
    }
    const image = made("img", made("div", cell));
    image.loading = "lazy";
    image.decoding = "async";
    image.alt = "";
    image.onload = () => {
      if (image.naturalWidth <= 1) collapse();
    };
    image.onerror = collapse;
    image.src = `${row.place}/poster`;
  }

  // Links to the pages of the other tables; that of the first one is the start page.
  function addTables(tables, own) {
    if (tables.length < 2) return;
    tables.forEach((name, number) => {
      if (number) at("tables").append(" · ");
      if (name === own) made("b", at("tables"), "", name);
      else made("a", at("tables"), "", name).href = number ? `./${quoted(name)}.html` : "./index.html";
    });
  }

  // Keeps the state in the address, so that the browser's back button restores it.

  function state() {
    const options = new URLSearchParams();
    if (at("filter").value) options.set("filter", at("filter").value);
    if (at("outcome").value) options.set("outcome", at("outcome").value);
    if (sorted.name) options.set("sort", (sorted.isDown ? "-" : "") + sorted.name);
    if (page) options.set("page", String(page + 1));
    return options.toString();
  }

  function remember() {
    const hash = state();
    if (hash !== location.hash.slice(1)) history.replaceState(null, "", hash ? `#${hash}` : location.pathname);
  }

  function recall() {
    const options = asked(), sort = options.get("sort") ?? "";
    at("filter").value = options.get("filter") ?? "";
    at("outcome").value = options.get("outcome") ?? "";
    if (at("outcome").selectedIndex < 0) at("outcome").value = "";
    const name = sort.replace(/^-/, "");
    if (name === "label" || names.includes(name)) sorted = { name, isDown: sort.startsWith("-") };
    page = (Number(options.get("page")) || 1) - 1;
  }

  // Shows what the address asks for: the list, two episodes of it (#compare=3,17), or, instead of this page, the episode
  // after or before one (#from=3&by=1).
  function route() {
    recall();
    const numbered = (text) => (/^\d{1,15}$/.test(text) ? rows[text] : undefined);
    const named = (asked().get("compare") ?? "").split(",").map(numbered);
    const from = numbered(asked().get("from")), by = Math.sign(Number(asked().get("by")));
    const isPair = isOfEpisodes && named.length === 2 && !named.includes(undefined);
    at("back").hidden = true;
    at("pair").replaceChildren();
    select();
    const place = shown.indexOf(from) + by;
    if (isOfEpisodes && from && by && shown[place]) {
      page = Math.floor(place / AT_ONCE);
      location.replace(address(shown[place], place, state()));
      return;
    }
    at("all").hidden = isPair;
    at("pair").hidden = !isPair;
    at("tables").hidden = isPair || !at("tables").childElementCount;
    if (isBelow) lead("back", `${"../".repeat(depthInMount())}index.html`, "← All containers");
    if (isPair) compare(named);
    else filter();
  }

  function compare(two) {
    lead("back", `#${state()}`, "← Episodes");
    at("count").textContent = `${two.map((row) => row.label).join(" and ")}: the slider of each moves both`;
    pair = two.map((row) => {
      const frame = made("iframe", at("pair"));
      frame.title = row.label;
      frame.src = address(row, Math.max(0, shown.indexOf(row)), state());
      return frame;
    });
    pair[0].onload = () => pair[0].contentWindow.focus();
  }

  // What a page reports is its step. It is passed on if it is a number.
  addEventListener("message", ({ source, data }) => {
    const from = pair.findIndex((frame) => frame.contentWindow === source);
    if (from >= 0 && Number.isSafeInteger(data)) pair[1 - from].contentWindow?.postMessage(data, "*");
  });
  at("compare").onclick = () => {
    location.hash = `compare=${picked.map((row) => row.number)}&${state()}`;
  };

  const again = () => {
    page = 0;
    filter();
  };
  // A page from a server has only some rows, so the server is asked for those that the filter selects of all.
  const ask = () => {
    if (isServed) location.search = new URLSearchParams({ where: condition(filterWords(), at("outcome").value) });
  };
  at("filter").oninput = again;
  at("filter").onkeydown = ({ key }) => key === "Enter" && ask();
  at("outcome").onchange = () => {
    again();
    ask();
  };
  at("copy").onclick = async () => {
    const { title } = at("copy");
    try {
      await navigator.clipboard.writeText(title);
      at("count").textContent = "The command is in the clipboard.";
    } catch {
      prompt("Copy the command:", title);  // without a secure context there is no clipboard
    }
  };
  const turn = (by) => {
    page += by;
    show();
    scrollTo(0, 0);
  };
  at("before").onclick = () => turn(-1);
  at("after").onclick = () => turn(1);
  addEventListener("keydown", (event) => {
    const isTyping = event.target.closest("input[type=search], select");
    if (event.key === "/" && !isTyping) at("filter").focus();
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (event.target.closest("select")) return;
      const links = [...at("rows").querySelectorAll("a")], now = links.indexOf(document.activeElement);
      const next = now < 0 ? (event.key === "ArrowDown" ? 0 : -1) : now + (event.key === "ArrowDown" ? 1 : -1);
      if (next < 0) at("filter").focus();
      else links[Math.min(next, links.length - 1)]?.focus();
    } else return;
    event.preventDefault();
  });

  const folders = location.pathname.split("/").slice(0, -1);
  // In a mount's own directory, the page is about what was mounted.
  if (folders.at(-2) === ".glassfs") folders.splice(-2);
  try {
    head(decodeURIComponent(folders.at(-1) ?? ""));
  } catch {
    // A name that is not UTF-8 cannot be shown.
  }
  const facts = JSON.parse(at("facts").textContent);
  if (facts !== null) window.glassfs.rows(facts);
})();
