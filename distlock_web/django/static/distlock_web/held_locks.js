"use strict";
const root = document.getElementById("distlock");
if (root) { // else a page that stands still
    // The list goes on by itself. The server renders it anew, and only what differs goes into the page: a selection, the
    // focus and the scroll position stay where they are. While somebody reads, it stands still.
    const EVERY = 2000; // milliseconds
    const live = document.getElementById("dl-live");
    const totals = document.getElementById("dl-totals"); // none on the page of one lock
    const status = document.getElementById("dl-status");
    let timer = null;
    let request = null;

    // What differs ---------------------------------------------------------------------------------------------------

    function sync(old, fresh) {
        if (old.isEqualNode(fresh)) {
            return;
        }
        if (old.nodeType === Node.TEXT_NODE && fresh.nodeType === Node.TEXT_NODE) {
            old.nodeValue = fresh.nodeValue;
        } else if (old.nodeName !== fresh.nodeName || old.nodeType !== Node.ELEMENT_NODE) {
            old.replaceWith(fresh);
        } else if (old.nodeName === "TBODY" && old.querySelector("[data-key]")) {
            syncRows(old, fresh);
        } else if (old.childNodes.length !== fresh.childNodes.length) {
            old.replaceWith(fresh);
        } else {
            syncAttributes(old, fresh);
            const children = [...fresh.childNodes];
            [...old.childNodes].forEach((child, place) => sync(child, children[place]));
        }
    }

    function syncAttributes(old, fresh) {
        for (const { name } of [...old.attributes]) {
            if (!fresh.hasAttribute(name)) {
                old.removeAttribute(name);
            }
        }
        for (const { name, value } of fresh.attributes) {
            if (old.getAttribute(name) !== value) {
                old.setAttribute(name, value);
            }
        }
    }

    function syncRows(body, fresh) {
        const gone = new Map([...body.rows].map((row) => [row.dataset.key, row]));
        let place = body.rows[0] || null;
        for (const row of [...fresh.rows]) {
            const known = gone.get(row.dataset.key);
            gone.delete(row.dataset.key);
            if (known && known === place) {
                place = place.nextElementSibling;
            } else {
                body.insertBefore(known || row, place);
            }
            if (known) {
                sync(known, row);
            }
        }
        gone.forEach((row) => row.remove());
    }

    function syncParts(parts) {
        const same = live.children.length === parts.length
            && parts.every((part, place) => part.nodeName === live.children[place].nodeName);
        if (same) {
            parts.forEach((part, place) => sync(live.children[place], part));
        } else {
            live.replaceChildren(...parts);
        }
    }

    function show(html) {
        const fresh = new DOMParser().parseFromString(html, "text/html").body;
        localise(fresh);
        if (totals) {
            sync(totals.firstElementChild, fresh.querySelector(".dl-totals"));
            fresh.querySelector(".dl-totals")?.remove(); // where the first one was put in place of the old
        }
        const standing = read() && !fresh.querySelector(".dl-error");
        if (!standing) {
            syncParts([...fresh.children]);
        }
        sayLive(standing);
        count();
    }

    // Somebody reads: points at the list, or is in it with the keyboard.
    function read() {
        const list = live.querySelector(".dl-table, .dl-queue");
        const points = window.matchMedia("(hover: hover)").matches && list && list.matches(":hover");
        return Boolean(points || live.querySelector("table :focus-visible"));
    }

    // Times in the reader's own zone ---------------------------------------------------------------------------------

    function localise(part) {
        for (const time of part.querySelectorAll("time[datetime]")) {
            const moment = new Date(time.dateTime);
            if (!Number.isNaN(moment.getTime())) {
                const today = moment.toDateString() === new Date().toDateString();
                const text = today ? moment.toLocaleTimeString() : moment.toLocaleString();
                time.title = moment.toLocaleString();
                if (time.textContent === time.getAttribute("datetime")) {
                    time.textContent = text;
                }
            }
        }
    }

    // The refresh ----------------------------------------------------------------------------------------------------

    // What it says stands in the page, in the reader's language.
    function say(kind, what) {
        const text = status.dataset[what];
        status.className = `dl-${kind}`;
        if (status.textContent !== text) {
            status.textContent = text;
        }
    }

    function sayLive(standing) {
        if (live.querySelector(".dl-error")) {
            say("stale", "failed");
        } else {
            say("live", standing ? "standing" : "live");
        }
    }

    async function refresh() {
        const mine = request = new AbortController();
        const begun = performance.now();
        try {
            const signal = AbortSignal.any([mine.signal, AbortSignal.timeout(15000)]);
            const url = `${root.dataset.fragment}${root.dataset.fragment.includes("?") ? "&" : "?"}fragment=1`;
            const response = await fetch(url, { cache: "no-store", signal });
            if (response.redirected || response.status === 401 || response.status === 403) {
                say("stale", "login");
                return;
            }
            if (!response.ok) {
                throw new Error(response.status);
            }
            show(await response.text());
        } catch {
            if (mine.signal.aborted) {
                return; // Hidden meanwhile: the next look comes when that ends.
            }
            say("stale", "silent");
        }
        // Nobody asks for a long listing more often than a fifth of the time.
        plan(Math.max(EVERY, 4 * (performance.now() - begun)));
    }

    function plan(delay) {
        clearTimeout(timer);
        if (!document.hidden) {
            timer = setTimeout(refresh, delay);
        }
    }

    function restart() {
        clearTimeout(timer);
        if (request) {
            request.abort();
        }
        plan(0);
    }

    document.addEventListener("visibilitychange", restart);

    // What is chosen -------------------------------------------------------------------------------------------------

    const release = document.getElementById("dl-release-selected");

    function count() {
        if (release) {
            const chosen = live.querySelectorAll("input[name=lock]:checked").length;
            release.disabled = chosen === 0;
            release.textContent = chosen ? `${release.dataset.verb} (${chosen})…` : `${release.dataset.verb}…`;
        }
    }

    if (release) {
        live.addEventListener("change", (event) => {
            if (event.target.id === "dl-all") {
                live.querySelectorAll("input[name=lock]").forEach((box) => { box.checked = event.target.checked; });
            }
            count();
        });
    }

    localise(live);
    count();
    sayLive(false);
    plan(EVERY);
}
