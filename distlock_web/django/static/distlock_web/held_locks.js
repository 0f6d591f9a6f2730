"use strict";
const root = document.getElementById("distlock");
if (root) { // else a page that stands still
    // The list goes on by itself: the server renders it anew, and what is ticked stays so. While somebody reads, it
    // stands still.
    const EVERY = 2000; // milliseconds
    const live = document.getElementById("dl-live");
    const totals = document.getElementById("dl-totals"); // none on the page of one lock
    const status = document.getElementById("dl-status");
    let timer = null;
    let request = null;

    // What is shown --------------------------------------------------------------------------------------------------

    function show(html) {
        const fresh = new DOMParser().parseFromString(html, "text/html").body;
        const figures = fresh.querySelector(".dl-totals");
        if (totals && figures) {
            totals.replaceChildren(figures);
        }
        showErrors(fresh);
        const standing = read();
        if (!standing) {
            const chosen = new Set([...live.querySelectorAll("input:checked")].map((box) => box.value));
            [...live.children].forEach((child) => { child.matches(".dl-error") || child.remove(); });
            live.append(...fresh.children);
            live.querySelectorAll("input").forEach((box) => { box.checked = chosen.has(box.value); });
        }
        sayLive(standing);
        count();
    }

    // To who reads, too; and only where they are new, for a screen reader says them aloud.
    function showErrors(fresh) {
        const [shown, errors] = [live, fresh].map((place) => [...place.querySelectorAll(".dl-error")]);
        const [before, now] = [shown, errors].map((all) => all.map((error) => error.textContent).join());
        errors.forEach((error) => error.remove());
        if (now !== before) {
            shown.forEach((error) => error.remove());
            live.prepend(...errors);
        }
    }

    // Somebody reads: points at the list, is in it with the keyboard, or has marked something to copy it.
    function read() {
        const list = live.querySelector(".dl-table, .dl-queue");
        const points = window.matchMedia("(hover: hover)").matches && list && list.matches(":hover");
        const marked = getSelection();
        const marks = marked.type === "Range" && live.contains(marked.anchorNode);
        return Boolean(points || marks || live.querySelector(":focus-visible"));
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

    count();
    sayLive(false);
    plan(EVERY);
}
