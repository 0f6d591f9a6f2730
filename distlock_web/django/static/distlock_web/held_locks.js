"use strict";
{
    // The list refreshes itself. The server renders it anew, and only what differs goes into the page: a selection, the
    // focus and the scroll position stay where they are.
    const EVERY = 2000; // milliseconds
    const list = document.getElementById("held-locks");
    const status = document.getElementById("held-locks-live");
    let timer = null;
    let request = null;

    function sync(old, fresh) {
        if (old.isEqualNode(fresh)) {
            return;
        }
        if (old.nodeName !== fresh.nodeName || old.childNodes.length !== fresh.childNodes.length) {
            old.replaceWith(fresh);
        } else if (old.nodeType === Node.TEXT_NODE) {
            old.nodeValue = fresh.nodeValue;
        } else {
            for (const { name, value } of fresh.attributes) {
                old.setAttribute(name, value);
            }
            const children = [...fresh.childNodes];
            [...old.childNodes].forEach((child, place) => sync(child, children[place]));
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

    function show(html) {
        const fresh = new DOMParser().parseFromString(html, "text/html").body;
        const parts = [...fresh.children];
        const sameParts = list.children.length === parts.length
            && parts.every((part, place) => part.className === list.children[place].className);
        const [table, freshTable] = [list.querySelector("table"), fresh.querySelector("table")];
        if (!sameParts || (table && !table.tHead.isEqualNode(freshTable.tHead))) {
            list.replaceChildren(...parts);
            return;
        }
        parts.forEach((part, place) => {
            if (part.contains(freshTable)) {
                syncRows(table.tBodies[0], freshTable.tBodies[0]);
            } else {
                sync(list.children[place], part);
            }
        });
    }

    function say(kind, text) {
        status.className = kind;
        if (status.textContent !== text) {
            status.textContent = text;
        }
    }

    async function refresh() {
        const url = new URL(window.location.href);
        url.searchParams.set("fragment", "1");
        request = new AbortController();
        try {
            const signal = AbortSignal.any([request.signal, AbortSignal.timeout(10000)]);
            const response = await fetch(url, { cache: "no-store", signal });
            if (response.redirected || response.status === 403) {
                say("stale", status.dataset.ended);
                return;
            }
            if (!response.ok) {
                throw new Error(response.status);
            }
            show(await response.text());
            say("live", status.dataset.live);
        } catch (error) {
            if (request.signal.aborted) {
                return; // Hidden meanwhile: the next look comes with the page.
            }
            say("stale", status.dataset.paused);
        }
        plan(EVERY);
    }

    function plan(delay) {
        clearTimeout(timer);
        if (!document.hidden) {
            timer = setTimeout(refresh, delay);
        }
    }

    document.addEventListener("visibilitychange", () => {
        clearTimeout(timer);
        if (request) {
            request.abort();
        }
        plan(0);
    });

    say("live", status.dataset.live);
    plan(EVERY);
}
