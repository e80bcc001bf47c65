(() => {
  const script = document.currentScript;
  const own = script && script.closest(".hw-player");
  (own ? [own] : document.querySelectorAll(".hw-player:not([data-ready])")).forEach(start);

  function start(root) {
    if (root.dataset.ready) return;
    root.dataset.ready = "1";
    const data = JSON.parse(root.querySelector("script[type='application/json']").textContent);
    const find = (name) => root.querySelector(name);
    const bar = find(".bar"), slider = find("input"), play = find(".play"), caption = find(".caption");
    const detail = find(".detail"), last = data.steps.length - 1;
    const panes = [...root.querySelectorAll("[data-view]")], frames = [...root.querySelectorAll(".frames > svg")];
    const still = matchMedia("(prefers-reduced-motion: reduce)");
    let at = 0, timer = 0, chosen = -1, before = 0, view = panes[0].dataset.view;
    const themed = () => {  // as dark as the page is: light words stand on a dark ground
      const colour = getComputedStyle(root.parentElement).color, [red, green, blue] = colour.match(/[\d.]+/g);
      if (colour.startsWith("rgb")) root.style.colorScheme = 0.3 * red + 0.6 * green + 0.1 * blue > 127 ? "dark" : "light";
    };
    const pages = new MutationObserver(() => root.isConnected ? themed() : pages.disconnect());
    [document.documentElement, document.body].forEach((part) => pages.observe(part, { attributes: true }));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => root.isConnected && themed());
    themed();
    bar.hidden = false;
    slider.max = last;

    const seconds = (place) => {
      const k = Math.min(Math.floor(place), last), next = data.steps[Math.min(k + 1, last)][0];
      return data.steps[k][0] + (next - data.steps[k][0]) * (place - k);
    };
    const x = (s) => data.left + (s / data.end) * data.width;

    function draw() {
      const k = Math.min(Math.floor(at + 1e-9), last), now = seconds(at);
      slider.value = k;
      slider.setAttribute("aria-valuetext", data.steps[k][1]);
      if (caption.textContent !== data.steps[k][1]) caption.textContent = data.steps[k][1];
      frames.forEach((frame, i) => { frame.style.display = i === k ? "" : "none"; });
      for (const pane of panes) {
        const line = pane.querySelector(".now"), veil = pane.querySelector(".veil");
        if (!line) continue;
        line.style.display = "";
        line.setAttribute("x1", x(now));
        line.setAttribute("x2", x(now));
        veil.setAttribute("x", x(now));
        veil.setAttribute("width", Math.max(data.left + data.width - x(now) + 8, 0));
      }
      dots(now);
    }

    function dots(now) {
      const layer = find("[data-view='messages'] .dots");
      if (!layer) return;
      let circles = "";
      if (at > 0 && at < last)
        for (const [from, to, a, b] of data.messages)
          if (a < now && now < b && circles.length < 20000)
            circles += `<circle class="dot" r="4.5" cx="${x(now)}" cy="${data.y[from] + ((data.y[to] - data.y[from]) * (now - a)) / (b - a)}"/>`;
      layer.innerHTML = circles;
    }

    function go(place) {
      at = Math.max(0, Math.min(place, last));
      draw();
    }
    function stop() {
      cancelAnimationFrame(timer);
      timer = 0;
      play.textContent = "▶";
      play.setAttribute("aria-label", "play");
    }
    function run(stamp) {
      const step_ms = Math.max(90, Math.min(900, 14000 / Math.max(last, 1)));
      const passed = before ? (stamp - before) / step_ms : 0;
      before = stamp;
      if (still.matches) { if (passed >= 1) go(Math.floor(at) + 1); else if (before) before -= passed * step_ms; }
      else go(at + passed);
      if (at >= last) stop();
      else timer = requestAnimationFrame(run);
    }
    function toggle() {
      if (timer) return stop();
      if (at >= last) at = 0;
      before = 0;
      play.textContent = "❚❚";
      play.setAttribute("aria-label", "pause");
      timer = requestAnimationFrame(run);
    }
    const step = (by) => { stop(); go(by > 0 ? Math.floor(at + 1e-9) + by : Math.ceil(at - 1e-9) + by); };

    play.onclick = toggle;
    find(".back").onclick = () => step(-1);
    find(".forward").onclick = () => step(1);
    slider.oninput = () => { stop(); go(+slider.value); };
    root.querySelectorAll("[data-show]").forEach((button) => { button.onclick = () => show(button.dataset.show); });
    function show(name) {
      view = name;
      chosen = -1;
      panes.forEach((pane) => { pane.hidden = pane.dataset.view !== name; });
      root.querySelectorAll("[data-show]").forEach((b) => b.setAttribute("aria-pressed", b.dataset.show === name));
    }

    function choose(i) {
      chosen = i;
      const [from, to, a, b, bytes, kind] = data.messages[i], [factor, unit] = data.unit;
      find("[data-view='messages'] .chosen").setAttribute("d", `M${x(a)} ${data.y[from]}L${x(b)} ${data.y[to]}`);
      const when = `${+(a * factor).toPrecision(4)} to ${+(b * factor).toPrecision(4)} ${unit}`;
      detail.textContent = `rank ${from} → rank ${to}: ${bytes.toLocaleString("en")} bytes, ${when}, ${data.kinds[kind]}`;
    }
    const boxes = [...root.querySelectorAll("[data-pass]")];
    function choosePass(i) {
      chosen = i;
      boxes.forEach((box) => { box.classList.toggle("now-pass", +box.dataset.pass === i); });
      detail.textContent = data.passes[i];
    }
    boxes.forEach((box) => { box.addEventListener("pointerenter", () => choosePass(+box.dataset.pass)); });
    const listed = () => view === "messages" ? [data.messages.length, choose]
      : view === "pipeline" ? [boxes.length, choosePass] : [0];
    const next = (by) => {
      const [n, pick] = listed();
      if (n) pick((Math.min(Math.max(chosen, by > 0 ? -1 : 0), n - 1) + by + n) % n);
    };
    const time = find("[data-view='messages'] svg");
    if (time) {
      time.addEventListener("pointermove", (event) => {
        const p = new DOMPoint(event.clientX, event.clientY).matrixTransform(time.getScreenCTM().inverse());
        let best = -1, least = 9;
        data.messages.forEach(([from, to, a, b], i) => {
          const ax = x(a), ay = data.y[from], bx = x(b) - ax, by = data.y[to] - ay;
          const part = Math.max(0, Math.min(1, ((p.x - ax) * bx + (p.y - ay) * by) / (bx * bx + by * by || 1)));
          const far = Math.hypot(p.x - ax - part * bx, p.y - ay - part * by);
          if (far < least) { least = far; best = i; }
        });
        if (best !== chosen && best >= 0) choose(best);
      });
    }
    root.addEventListener("keydown", (event) => {
      const onPane = event.target.classList.contains("pane");
      const keys = { ArrowRight: () => step(1), ArrowLeft: () => step(-1), Home: () => { stop(); go(0); },
        End: () => { stop(); go(last); } };
      if (onPane) Object.assign(keys, { " ": toggle,
        ArrowDown: () => next(1), ArrowUp: () => next(-1) });
      if (event.target === slider || !keys[event.key]) return;
      event.preventDefault();
      event.stopPropagation();
      keys[event.key]();
    });
    show(view);
    go(view === "chunks" ? 0 : last);
  }
})();
