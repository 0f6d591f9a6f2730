// The shop page: runs a drill, draws sold against stock as the answers come in, and shows which locks are held.

const buyers = Number(document.body.dataset.buyers);
const stock = Number(document.body.dataset.stock);

function post(url) {
  const token = document.cookie.match(/csrftoken=([^;]+)/)?.[1] ?? "";
  return fetch(url, { method: "POST", headers: { "X-CSRFToken": token, Accept: "application/problem+json" } });
}

// The drill ----------------------------------------------------------------------------------------------------------

const sections = [...document.querySelectorAll(".drill")];

for (const section of sections) {
  draw(section, [{ answers: 0, sold: 0 }]);
  section.querySelector("button").addEventListener("click", () => run(section));
}

async function run(section) {
  const buttons = sections.map((each) => each.querySelector("button"));
  buttons.forEach((button) => (button.disabled = true));
  section.querySelector("dl").hidden = true;
  try {
    const course = [{ answers: 0, sold: 0 }];
    for await (const line of lines(await post(section.dataset.url))) {
      if (line.outcome) conclude(section, line.outcome);
      else {
        course.push(line);
        draw(section, course);
        say(section, `${line.answers} of ${buyers} buyers have been answered, ${line.sold} items are sold.`);
      }
    }
  } catch (error) {
    say(section, `The drill has failed: ${error.message}`, "bad");
  } finally {
    buttons.forEach((button) => (button.disabled = false));
  }
}

async function* lines(response) {
  if (!response.ok) throw new Error(`the shop answered ${response.status}`);
  let rest = "";
  for (const reader = response.body.pipeThrough(new TextDecoderStream()).getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) yield JSON.parse(part);
  }
}

function conclude(section, outcome) {
  if (outcome.failed) say(section, `${outcome.failed} buyers got no proper answer.`, "bad");
  else if (outcome.oversold)
    say(section, `${outcome.sold} sold of ${stock}: ${outcome.oversold} buyers have paid for nothing.`, "bad");
  else say(section, `${outcome.sold} sold of ${stock}, not one too many.`, "good");
  const facts = {
    "Left in the books": outcome.remaining,
    "Answered busy": outcome.busy,
    "Time, median": `${Math.round(outcome.p50 * 1000)} ms`,
    "99th percentile": `${Math.round(outcome.p99 * 1000)} ms`,
  };
  const list = section.querySelector("dl");
  list.replaceChildren(
    ...Object.entries(facts).map(([name, value]) => element("div", element("dt", name), element("dd", String(value)))),
  );
  list.hidden = false;
}

function say(section, text, how = "") {
  const verdict = section.querySelector(".verdict");
  verdict.textContent = text;
  verdict.className = `verdict ${how}`;
}

// The chart: buyers answered from left to right, items sold upwards, the stock as a line that must not be crossed ------

function draw(section, course) {
  const [width, height, left, right, top, bottom] = [480, 240, 34, 10, 12, 34];
  const x = (answers) => left + (answers / buyers) * (width - left - right);
  const y = (sold) => height - bottom - (sold / buyers) * (height - top - bottom);
  const last = course.at(-1);
  const path = course.map((point) => `${x(point.answers)},${y(point.sold)}`).join(" ");
  const area = (limit) =>
    `${x(0)},${y(0)} ` + course.map((p) => `${x(p.answers)},${y(Math.min(p.sold, limit))}`).join(" ") + ` ${x(last.answers)},${y(0)}`;
  // What lies above the stock: the line itself, and back along the stock.
  const over = course.filter((point) => point.sold > stock);
  const beyond = over.length
    ? `${x(over[0].answers)},${y(stock)} ${over.map((p) => `${x(p.answers)},${y(p.sold)}`).join(" ")} ${x(last.answers)},${y(stock)}`
    : "";
  section.querySelector("figure").innerHTML = `
    <svg viewBox="0 0 ${width} ${height}" role="img" aria-label="${last.sold} items sold to ${last.answers} buyers; the stock was ${stock}"
         class="${last.sold > stock ? "oversold" : ""}">
      <line class="axis" x1="${left}" x2="${left}" y1="${top}" y2="${y(0)}"/>
      <line class="axis" x1="${left}" x2="${width - right}" y1="${y(0)}" y2="${y(0)}"/>
      <text x="${left - 6}" y="${y(buyers) + 4}" text-anchor="end">${buyers}</text>
      <text x="${left - 6}" y="${y(stock) + 4}" text-anchor="end" class="stock-label">${stock}</text>
      <text x="${left - 6}" y="${y(0) + 4}" text-anchor="end">0</text>
      <text x="${left}" y="${height - 10}">buyers answered</text>
      <text x="${width - right}" y="${height - 10}" text-anchor="end">${buyers}</text>
      <polygon class="within" points="${area(stock)}"/>
      <polygon class="beyond" points="${beyond}"/>
      <line class="stock" x1="${left}" x2="${width - right}" y1="${y(stock)}" y2="${y(stock)}"/>
      <text x="${left + 8}" y="${y(stock) - 7}" class="stock-label">in stock</text>
      <polyline class="sold" points="${path}"/>
    </svg>`;
}

// Held locks. Names and paths come from clients: they are set as text, never as HTML ---------------------------------

const table = document.querySelector(".locks tbody");

async function refresh() {
  try {
    const response = await fetch("locks.json");
    if (!response.ok) throw new Error(`The shop answered ${response.status}.`);
    const { locks, errors } = await response.json();
    if (errors.length) throw new Error(errors.join(" "));
    table.replaceChildren(...(locks.length ? locks.map(row) : [nothing("No lock is held at this moment.")]));
  } catch (error) {
    table.replaceChildren(nothing(error.message));
  }
  setTimeout(refresh, 150);
}

function row(lock) {
  const meter = element("meter");
  meter.max = Math.max(10, lock.remaining);
  meter.value = lock.remaining;
  const left = element("td", meter, `${lock.remaining.toFixed(1)} s`);
  const waiting = element("td", String(lock.waiters));
  waiting.className = "number";
  return element("tr", element("td", lock.name), element("td", lock.path || lock.function || "handed over"), element("td", String(lock.pid || "")), waiting, left);
}

function nothing(text) {
  const cell = element("td", text);
  cell.colSpan = 5;
  cell.className = "nothing";
  return element("tr", cell);
}

function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

refresh();

// Holding a lock -----------------------------------------------------------------------------------------------------

const says = document.querySelector("#stocktaking-says");
const stocktaking = document.querySelector("#stocktaking");

stocktaking.addEventListener("click", async () => {
  try {
    const response = await post(stocktaking.dataset.url);
    const answer = await response.json();
    if (response.ok) says.textContent = answer.finished ? "Held, and given back." : `The lock was lost: ${answer.reason}.`;
    else says.textContent = `${response.status}: ${answer.detail}`;
  } catch (error) {
    says.textContent = error.message;
  }
});
