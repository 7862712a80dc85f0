// The page of an episode: frames by file name, plots of the values in data.js, and one current step for both.
(() => {
  const COLORS = 8, AHEAD = 4, SPEEDS = [0.1, 0.25, 0.5, 1, 2, 4], SHOWN_AS = [".png", ".jpg"], SMALL = 200;
  const facts = JSON.parse(document.getElementById("facts").textContent);
  const duration = (seconds) => {
    if (seconds < 60) return `${Number(seconds.toFixed(1))} s`;
    const minutes = Math.floor(seconds / 60);
    if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
    return `${Math.floor(minutes / 60).toLocaleString("en")} h ${minutes % 60} min`;
  };
  const clamp = (value, least, most) => Math.min(most, Math.max(least, value));
  const short = (value) => {
    if (!Number.isFinite(value)) return String(value);
    const size = Math.abs(value);
    return size !== 0 && (size >= 1e6 || size < 1e-3) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
  };
  const steps = Math.max(facts.rows, ...facts.cameras.map((camera) => camera.count), 0);
  const last = Math.max(0, steps - 1);
  const state = { step: 0, isPlaying: false, speed: 1, began: 0, from: 0 };
  const followers = [];

  // Cameras

  class Camera {
    constructor(camera) {
      this.camera = camera;
      this.suffix = SHOWN_AS[0];
      this.asked = null;
      this.starts = [];
      this.lengths = [];
      let end = 0;
      for (let index = 0; index < camera.runs.length; index += 2) {
        this.starts.push(end + camera.runs[index]);
        this.lengths.push(camera.runs[index + 1]);
        end = this.starts.at(-1) + camera.runs[index + 1];
      }
      const figure = made("figure", at("cameras"), "camera");
      const well = made("div", figure, "well");
      well.style.aspectRatio = `${clamp(camera.width, 1, 1e4)} / ${clamp(camera.height, 1, 1e4)}`;
      this.image = made("img", well, Math.max(camera.width, camera.height) <= SMALL ? "small" : "");
      this.image.decoding = "async";
      this.status = made("p", well);
      this.status.setAttribute("role", "status");
      const caption = made("figcaption", figure);
      made("b", caption, "", camera.name).dir = "auto";
      made("span", caption, "soft", `${camera.width} × ${camera.height}`);
      this.link = made("a", caption);
      this.image.onload = () => this.loaded("");
      this.image.onerror = () => this.missed();
      this.addVideo(figure);
    }

    // Returns the last existing frame up to a step.
    found(step) {
      const run = this.starts.findLastIndex((start) => start <= step);
      if (run < 0) return null;
      return Math.min(step, this.starts[run] + this.lengths[run] - 1);
    }

    address(number) {
      return this.camera.folder + String(number).padStart(this.camera.digits, "0") + this.suffix;
    }

    show(step) {
      const number = this.found(step);
      this.isLate = number !== null && number < step;
      this.link.hidden = this.image.hidden = number === null;
      this.step = step;
      if (number === null) {
        this.asked = null;
        this.loaded("There is no frame yet.");
        return;
      }
      this.image.alt = `${this.camera.name}, frame ${number}`;
      if (number === this.asked) {
        this.report("");
        return;
      }
      this.asked = number;
      this.isLoading = true;
      this.isSecondTry = false;
      this.request();
    }

    // Requests the frame that is asked for.
    request() {
      const address = this.address(this.asked);
      this.link.textContent = address.split("/").pop();
      this.image.src = this.link.href = address;
    }

    // The page does not know the suffixes: the other one is tried, and used for the frames after this one.
    missed() {
      if (this.isSecondTry) this.loaded("This frame cannot be read.");
      else if (this.asked !== null) {
        this.isSecondTry = true;
        this.suffix = SHOWN_AS.find((suffix) => suffix !== this.suffix);
        this.request();
      }
    }

    loaded(text) {
      this.isLoading = false;
      this.report(text);
    }

    report(text) {
      const missing = this.isLate ? `There is no frame ${this.step}: this is the previous one.` : "";
      this.status.textContent = text || missing;
      this.status.hidden = !this.status.textContent;
    }

    // Requests images that will be shown soon.
    prepare(step) {
      this.ahead = [];
      for (let next = step + 1; next <= Math.min(last, step + AHEAD); next++) {
        if (this.found(next) === next) {
          const image = new Image();
          image.src = this.address(next);
          this.ahead.push(image);
        }
      }
    }

    // Requests the file of the mp4 view only when the user opens it: it may not exist.
    addVideo(figure) {
      const details = made("details", figure);
      made("summary", details, "", "As a video");
      details.addEventListener("toggle", () => {
        if (!details.open || this.video) return;
        this.video = made("video", details);
        this.video.controls = true;
        this.video.setAttribute("aria-label", `${this.camera.name}, as a video`);
        this.video.onerror = () => {
          this.video.remove();
          made("p", details, "soft", "There is no video beside the frames: mount with views=html+mp4.");
        };
        this.video.ontimeupdate = () => {
          const { currentTime, duration } = this.video;
          if (duration) go(Math.floor(currentTime / duration * this.camera.count + 1e-6));
        };
        this.video.src = this.camera.video;
      });
    }
  }

  // Plots

  class Plot {
    constructor(column) {
      this.column = column;
      this.hidden = new Set();
      this.figure = made("figure", at("plots"), "card plot");
      const caption = made("figcaption", this.figure);
      made("b", caption, "", column.name).dir = "auto";
      this.status = made("span", caption, "soft", "Reading …");
    }

    fill(text, isGood) {
      const { column } = this;
      if (!isGood) {
        this.status.textContent = "The values cannot be read: they are damaged.";
        return;
      }
      const raw = Uint8Array.from(atob(text), (character) => character.charCodeAt(0)).buffer;
      this.values = column.type === "f4" ? new Float32Array(raw) : new Float64Array(raw);
      this.status.textContent = column.items > 1 ? `${column.items} channels` : "";
      this.chart = made("div", this.figure, "chart");
      this.canvas = made("canvas", this.chart);
      this.canvas.setAttribute("role", "img");
      this.canvas.setAttribute("aria-label", `Plot of ${column.name} over ${facts.rows} steps`);
      this.marker = made("i", this.chart);
      this.addLegend();
      const seek = (event) => {
        if (event.type === "pointermove" && !(event.buttons & 1)) return;
        const box = this.canvas.getBoundingClientRect();
        pause();
        go(Math.round((event.clientX - box.left - this.left) / Math.max(1, this.width) * Math.max(1, facts.rows - 1)));
      };
      this.chart.addEventListener("pointerdown", seek);
      this.chart.addEventListener("pointermove", seek);
      new ResizeObserver(() => this.draw()).observe(this.chart);
      this.draw();
    }

    addLegend() {
      const legend = made("div", this.figure, "legend");
      this.legend = [];
      for (let channel = 0; channel < this.column.channels; channel++) {
        const button = made("button", legend);
        button.style.setProperty("--own", `var(--c${channel % COLORS})`);
        const name = this.column.items > 1 ? String(channel) : "value";
        button.title = this.column.items > 1 ? `Show or hide channel ${channel}` : "Show or hide";
        button.setAttribute("aria-pressed", "true");
        button.onclick = () => {
          if (!this.hidden.delete(channel)) this.hidden.add(channel);
          button.setAttribute("aria-pressed", String(!this.hidden.has(channel)));
          this.draw();
        };
        this.legend.push([button, name]);
      }
    }

    range() {
      let least = Infinity, most = -Infinity;
      const { points, channels } = this.column;
      for (let channel = 0; channel < channels; channel++) {
        if (this.hidden.has(channel)) continue;
        for (let place = channel * points; place < (channel + 1) * points; place++) {
          const value = this.values[place];
          if (value < least && value > -Infinity) least = value;
          if (value > most && value < Infinity) most = value;
        }
      }
      if (least > most) return [0, 1];
      const margin = (most - least) * 0.05 || Math.abs(most) * 0.1 || 1;
      return [least - margin, most + margin];
    }

    draw() {
      const { column, canvas } = this;
      const wide = this.chart.clientWidth, high = this.chart.clientHeight, scale = devicePixelRatio || 1;
      if (!wide || !high) return;
      canvas.width = Math.round(wide * scale);
      canvas.height = Math.round(high * scale);
      const style = getComputedStyle(this.figure), pen = canvas.getContext("2d");
      pen.scale(scale, scale);
      pen.font = "11px system-ui, sans-serif";
      const [least, most] = this.range(), ticks = ticksOf(least, most, 4);
      this.left = 10 + Math.max(...ticks.map((tick) => pen.measureText(short(tick)).width));
      this.width = wide - this.left - 8;
      const top = 8, height = high - top - 22;
      const y = (value) => top + height - (value - least) / (most - least) * height;
      pen.fillStyle = style.getPropertyValue("--soft");
      pen.strokeStyle = style.getPropertyValue("--line");
      pen.textBaseline = "middle";
      pen.textAlign = "right";
      for (const tick of ticks) {
        pen.beginPath();
        pen.moveTo(this.left, y(tick));
        pen.lineTo(this.left + this.width, y(tick));
        pen.stroke();
        pen.fillText(short(tick), this.left - 6, y(tick));
      }
      pen.textAlign = "center";
      pen.textBaseline = "bottom";
      for (const tick of ticksOf(0, facts.rows - 1, Math.max(2, Math.floor(this.width / 90)))) {
        if (!Number.isInteger(tick)) continue;
        const place = this.x(tick), half = pen.measureText(String(tick)).width / 2;
        pen.fillText(String(tick), clamp(place, this.left + half, wide - half), high - 4);
      }
      pen.lineWidth = column.channels > 16 ? 1 : 1.6;
      pen.lineJoin = "round";
      pen.globalAlpha = column.channels > 8 ? 0.75 : 1;
      pen.save();
      pen.beginPath();
      pen.rect(this.left, top - 2, this.width, height + 4);
      pen.clip();
      for (let channel = column.channels - 1; channel >= 0; channel--) {
        if (!this.hidden.has(channel)) this.line(pen, channel, y, style.getPropertyValue(`--c${channel % COLORS}`));
      }
      pen.restore();
      this.mark(state.step);
    }

    line(pen, channel, y, color) {
      const { points, stretch } = this.column, first = channel * points;
      pen.strokeStyle = pen.fillStyle = color;
      pen.beginPath();
      let isDown = false;
      for (let place = 0; place < points; place++) {
        const value = this.values[first + place];
        if (!Number.isFinite(value)) {
          isDown = false;
          continue;
        }
        const x = this.x(stretch === 1 ? place : (place >> 1) * stretch);
        if (isDown) pen.lineTo(x, y(value));
        else pen.moveTo(x, y(value));
        // Draws a point between two missing ones, which no line shows.
        if (!isDown && !Number.isFinite(this.values[first + place + 1])) pen.rect(x - 1, y(value) - 1, 2, 2);
        isDown = true;
      }
      pen.stroke();
    }

    x(step) {
      return this.left + (facts.rows > 1 ? step / (facts.rows - 1) : 0.5) * this.width;
    }

    mark(step) {
      if (!this.values || this.left === undefined) return;
      const { points, stretch } = this.column, row = clamp(step, 0, facts.rows - 1);
      this.marker.style.transform = `translateX(${this.x(row)}px)`;
      this.legend.forEach(([button, name], channel) => {
        const first = channel * points;
        let text;
        if (stretch === 1) text = short(this.values[first + row]);
        else {
          const place = first + 2 * Math.floor(row / stretch);
          text = `${short(this.values[place])} … ${short(this.values[place + 1])}`;
        }
        button.textContent = `${name}: ${text}`;
      });
    }
  }

  function ticksOf(least, most, count) {
    const rough = (most - least) / count, size = 10 ** Math.floor(Math.log10(rough));
    if (!(rough > 0) || !Number.isFinite(size)) return [least];
    const step = [1, 2, 5, 10].find((factor) => factor * size >= rough) * size;
    const ticks = [];
    for (let number = Math.ceil(least / step); number * step <= most && ticks.length < 50; number++) {
      ticks.push(number * step);
    }
    return ticks;
  }

  const plots = [];
  window.glassfs = {
    columns(data) {
      for (const column of data.columns) plots.push(new Plot(column));
      at("reading").hidden = true;
      if (data.leftOut) note(`There are too many channels to plot: ${data.leftOut} are left out.`);
      const long = data.columns.find((column) => column.stretch > 1);
      if (long) {
        note(`There are too many steps to plot each: the minimum and maximum of every ${long.stretch} are shown.`);
      }
      const partly = data.columns.filter((column) => column.taken < column.stretch && column.stretch > 1);
      for (const column of partly) {
        note(`Of ${column.name}, only the first ${column.taken} of every ${column.stretch} steps are read.`);
      }
    },
    values(number, text, isGood) {
      plots[number].fill(text, Boolean(isGood));
      followers.push((step) => plots[number].mark(step));
    },
  };
  addEventListener("error", (event) => {
    if (event.target instanceof HTMLScriptElement) {
      at("reading").hidden = true;
      note("The values cannot be plotted: data.js, beside this page, cannot be read.");
    }
  }, true);

  // Time

  // In a comparison, the page around this one passes each step on to the other episode.
  const isFramed = parent !== window;
  function go(step) {
    show(step);
    if (isFramed) parent.postMessage(state.step, "*");
  }
  addEventListener("message", ({ source, data }) => {
    if (!isFramed || source !== parent || !Number.isSafeInteger(data)) return;
    pause();
    show(data);
  });

  function show(step) {
    state.step = clamp(Math.round(step) || 0, 0, last);
    at("slider").value = String(state.step);
    const seconds = state.step / facts.fps;
    const clock = `${Math.floor(seconds / 60)}:${(seconds % 60).toFixed(2).padStart(5, "0")}`;
    at("now").textContent = `${state.step} / ${last} · ${clock}`;
    at("slider").setAttribute("aria-valuetext", `step ${state.step} of ${last}, ${clock}`);
    for (const follow of followers) follow(state.step);
  }

  function pause() {
    state.isPlaying = false;
    at("play").textContent = "Play";
  }

  function play() {
    if (state.step >= last) go(0);
    state.isPlaying = true;
    at("play").textContent = "Pause";
    restart();
    requestAnimationFrame(tick);
  }

  function restart() {
    state.began = performance.now();
    state.from = state.step;
  }

  function tick(now) {
    if (!state.isPlaying) return;
    const seconds = Math.max(0, now - state.began) / 1000;
    const step = Math.min(last, state.from + Math.floor(seconds * facts.fps * state.speed));
    // A late image delays playback by at most one step; then frames are skipped.
    if (step > state.step && !cameras.some((camera) => camera.isLoading)) {
      go(step);
      for (const camera of cameras) camera.prepare(step);
    }
    if (state.step >= last) pause();
    else requestAnimationFrame(tick);
  }

  const isPlayedBySpace = (target) => !target.closest("button, a, select, summary, video, input[type=search]");
  const toggle = () => (state.isPlaying ? pause() : play());
  const moves = {
    ArrowLeft: (event) => state.step - (event.shiftKey ? 10 : 1),
    ArrowRight: (event) => state.step + (event.shiftKey ? 10 : 1),
    PageUp: () => state.step - Math.ceil(steps / 10),
    PageDown: () => state.step + Math.ceil(steps / 10),
    Home: () => 0,
    End: () => last,
  };
  const move = (key, event) => {
    pause();
    go(moves[key](event));
  };
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select, video")) return;
    const way = { n: "later", p: "earlier", l: "back" }[event.key];
    if (way) at(way).click();
    else if (!steps) return;
    else if (event.key === " " && isPlayedBySpace(event.target)) toggle();
    else if (Object.hasOwn(moves, event.key)) move(event.key, event);
    else return;
    event.preventDefault();
  });
  at("slider").oninput = () => {
    pause();
    go(Number(at("slider").value));
  };
  at("play").onclick = toggle;
  for (const [id, key] of [["first", "Home"], ["before", "ArrowLeft"], ["after", "ArrowRight"], ["last", "End"]]) {
    at(id).onclick = (event) => move(key, event);
  }
  for (const speed of SPEEDS) {
    const option = made("option", at("speed"), "", `${speed} ×`);
    option.value = String(speed);
    option.selected = speed === 1;
  }
  at("speed").onchange = () => {
    state.speed = Number(at("speed").value);
    restart();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const plot of plots) if (plot.chart) plot.draw();
  });

  // A list passes the way back to it and its own state, the number of this row, and which of the shown ones it is:
  // #up=2&number=3&at=0&of=40&list=sort%3Dfps. Links may name a step: step=17.

  const asked = new URLSearchParams(location.hash.slice(1));
  const whole = (value) => (/^\d{1,15}$/.test(value ?? "") ? Number(value) : null);
  const list = asked.get("list") ?? "", folders = location.pathname.split("/").slice(0, -1);
  let up = whole(asked.get("up")), number = whole(asked.get("number")), count = whole(asked.get("of"));
  if (!up || up > 63 || number === null || count === null) {
    // Without them, the list is that of the container. Links by task and outcome are two folders below a list, and what
    // an export of some episodes calls CONTAINER~NUMBER has none.
    const isLinked = /^by-(task|success)$/.test(folders.at(-3)), isNumbered = /^\d+$/.test(folders.at(-1));
    number = isLinked && !isNumbered ? null : facts.number;
    count = null;
    if (isLinked) up = 3;
    else if (facts.number === null) up = depthInMount();
    else if (isNumbered) up = 2;
    else up = folders.at(-1).includes("~") ? 0 : facts.up ?? 0;
  }
  const above = `${"../".repeat(up)}index.html`;
  // The next episodes of a list as stored are beside this one. Otherwise, the list looks them up.
  const isPlain = count !== null && !asked.has("at") && folders.at(-1) === String(number);
  const rest = list && `&list=${encodeURIComponent(list)}`;
  const neighbour = (by) => (isPlain
    ? `../${number + by}/index.html#up=${up}&number=${number + by}&of=${count}${rest}`
    : `${above}#from=${number}&by=${by}${list && "&"}${list}`);
  const place = whole(asked.get("at")) ?? number;
  if (up) lead("back", list ? `${above}#${list}` : above);
  else lead("back", "../", "← Folder");
  document.documentElement.classList.toggle("framed", isFramed);
  if (isFramed) at("back").hidden = true;
  if (up && number !== null && (count === null || place < count)) {
    if (place > 0) lead("earlier", neighbour(-1));
    if (count === null || place < count - 1) lead("later", neighbour(1));
  }
  addEventListener("hashchange", () => {
    const step = new URLSearchParams(location.hash.slice(1)).get("step");
    if (step !== null) go(Number(step));
  });

  const cameras = facts.cameras.map((camera) => new Camera(camera));
  for (const camera of cameras) followers.push((step) => camera.show(step));
  at("cameras").classList.toggle("many", cameras.length > 2);
  at("cameras").hidden = !cameras.length;
  at("notes").hidden = !at("notes").querySelector("li");
  at("transport").hidden = at("keys").hidden = steps < 2;
  at("reading").hidden = !facts.rows;
  at("slider").max = String(last);
  if (steps) {
    const long = duration(steps / facts.fps);
    at("length").textContent = `${steps.toLocaleString("en")} steps · ${short(facts.fps)} a second · ${long}`;
  }
  show(Number(asked.get("step")) || 0);
})();
