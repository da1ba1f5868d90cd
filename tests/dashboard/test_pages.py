"""Every page in a real browser: what it shows, in both themes, at every width, for everyone."""

import json
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from selenium.webdriver.common.keys import Keys

from .conftest import AXE, Board, Browser, need

pytestmark = pytest.mark.xdist_group("dashboard")
STATIC = Path(__file__).parents[2] / "src/ackflow/dashboard/static"
MESSAGE = "queues/orders/messages/{message}"
PAGES = {
    "overview": ("", [
        "Queues in trouble", "payments", "Busiest queues", "Health", "Brokers", "ackflow serve",
        "shop-1, 812", "runs upkeep",
    ]),
    "queues": ("queues", ["mails.welcome", "paused.queue", "dead letters"]),
    "queue": ("queues/orders", ["billing", "shipping", "max_size", "default none"]),
    "messages": ("queues/orders/messages?group=billing&state=leased", ["12 shown", "leased"]),
    "message": (MESSAGE, ["Waiting until", "90071992547409931234567890", "Failed", "billing-1"]),
    "dead": ("dead", ["customer # not found", "12 dead letters by error", "Redrive 3"]),
    "dead_queue": ("queues/payments/dead", ["amount is negative", "Redrive all of payments"]),
    "groups": ("groups", ["billing", "shipping", "most behind first"]),
    "group": ("queues/orders/groups/shipping", ["ordered", "shop-3", "Seek"]),
    "leases": ("leases", ["billing-7f2c", "shipping-a1", "Release"]),
    "work": ("work", [
        "import-2026", "nightly-report", "60 %", "cron 0 2 * * * UTC", "Next tick",
        "shop-2:4711", "orders/billing", "bill", "and 2 more", "waiting for messages",
    ]),
    "pipelines": ("pipelines", [
        "1 table in alarm: south/sales", "73.0k", "1 of 2", "Route", "coffee.ends", "6.4 s",
    ]),
    "push": ("queues/orders/push", ["Push to orders", "Transaction id"]),
    "tail": ("queues/orders/tail", ["later"]),
    "tokens": ("tokens", ["No tokens", "New token"]),
    "audit": ("audit", ["No changes yet"]),
}  # fmt: skip


def path_of(board: Board, name: str) -> str:
    waiting = board.get("/v1/queues/orders/messages", group="billing", state="waiting")["items"]
    failed = next(one for one in waiting if "later" not in one["payload"])
    return PAGES[name][0].format(message=failed["id"])


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_what_is_there(board: Board, browser: Browser, name: str) -> None:
    browser.requests()
    browser.open(path_of(board, name))
    browser.sees(*PAGES[name][1])
    browser.shot(f"{name}-light")
    assert browser.problems() == []
    outside = [url for url in browser.requests() if urlsplit(url).scheme in ("http", "https")
               and urlsplit(url).netloc != urlsplit(board.url).netloc]  # fmt: skip
    assert outside == []
    browser.size(360, 740)
    browser.until(lambda: browser.js("return document.documentElement.scrollWidth <= 360"))
    browser.shot(f"{name}-360")
    browser.size(1280, 900)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious(board: Board, browser: Browser, name: str, theme: str) -> None:
    axe = Path(need(str(AXE), "axe-core")).read_text()
    browser.theme(theme)
    browser.open(path_of(board, name))
    browser.sees(PAGES[name][1][0])
    browser.shot(f"{name}-{theme}")
    browser.js(axe)
    found = browser.driver.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        "axe.run(document, {resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', "
        "'wcag21aa', 'wcag22aa']}).then((found) => done(found.violations))"
    )
    browser.theme("light")
    serious = [(one["id"], [node["html"] for node in one["nodes"]][:3])
               for one in found if one["impact"] in ("serious", "critical")]  # fmt: skip
    assert serious == [], json.dumps(serious, indent=1)


def test_the_files_are_small() -> None:
    files = [*STATIC.rglob("*.js"), *STATIC.rglob("*.css")]
    assert len(files) > 15
    assert sum(file.stat().st_size for file in files) < 150_000


def test_a_wide_screen_is_used(browser: Browser) -> None:
    browser.size(2560, 1300)
    browser.open("queues", "mails.welcome")
    assert browser.js("return document.querySelector('table').offsetWidth") > 1800
    browser.shot("queues-2560")
    browser.size(1280, 900)


def test_live_updates_do_not_move_the_page(board: Board, browser: Browser) -> None:
    browser.open("", "Queues in trouble")
    browser.js(
        "window.shifts = 0; new PerformanceObserver((list) => { for (const one of list.getEntries())"
        " window.shifts += one.value; }).observe({type: 'layout-shift', buffered: false});"
    )
    before = browser.js("return document.querySelector('.facts dd:last-of-type time')?.textContent")
    board.session.push("orders", {"n": 1})
    board.clock.advance(30)
    browser.until(lambda: browser.js(
        "return [...document.querySelectorAll('.facts time')].at(-1)?.textContent") != before)  # fmt: skip
    assert browser.js("return window.shifts") < 0.02


def test_a_page_is_not_read_while_it_is_paused_or_hidden(board: Board, browser: Browser) -> None:
    browser.open("groups", "billing")
    browser.js(
        "window.reads = 0; const real = window.fetch; window.fetch = (...given) => {"
        " window.reads++; return real(...given); };"
        "window.timers = []; window.setTimeout = (work, delay) => { timers.push([work, delay]); return 0; };"
    )
    browser.click("Refresh")
    browser.until(lambda: browser.js("return reads") == 1)
    browser.until(lambda: browser.js("return timers.some(([, delay]) => delay >= 2000)"))
    browser.js("Object.defineProperty(document, 'hidden', {get: () => window.away, configurable: true});"
               "window.away = true; timers.length = 0;")  # fmt: skip
    browser.click("Refresh")
    browser.until(lambda: browser.js("return reads") == 2)
    browser.press("p", "p")  # the answer was drawn; resuming reads once
    browser.until(lambda: browser.js("return reads") == 3)
    assert browser.js("return timers.filter(([, delay]) => delay >= 2000).length") == 0
    browser.js("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
    browser.until(lambda: browser.js("return reads") == 4)
    browser.until(lambda: browser.js("return timers.some(([, delay]) => delay >= 2000)"))


def test_markup_and_long_names_are_shown_as_text_that_fits(board: Board, browser: Browser) -> None:
    q, bad = board.session, "<img src=x onerror=window.hacked=1>"
    name, long = f"{bad} ünïcode/漢字 ?&#%{'x' * 99}", bad + "y" * 80
    q.push(name, {bad: long}, partition=long, headers={long: long * 20})
    q.pop(name, group=bad, consumer=long)[0].reject(long * 5)
    (letter,) = q.dead_letters(name)
    at = f"queues/{quote(name, safe='')}"
    for page in (at, f"{at}/messages", f"{at}/messages/{letter.message_id}", f"{at}/dead", f"{at}/tail",
                 f"{at}/groups/{quote(bad, safe='')}", f"dead?queue={quote(name, safe='')}"):  # fmt: skip
        browser.open(page, bad)
        assert browser.js("return document.querySelectorAll('img[src=x]').length") == 0, page
        for width in (360, 1280):
            browser.size(width, 900)
            assert browser.js("return document.documentElement.scrollWidth") <= width, page
    assert browser.js("return window.hacked") is None
    q.delete_queue(name)


def test_an_address_that_was_cut_is_answered(browser: Browser) -> None:
    browser.open("queues/%E6%BC", "No such page")


def test_the_keyboard_alone_is_enough(browser: Browser) -> None:
    browser.open("", "Overview")
    browser.press("?")
    browser.sees("Keyboard", "Dead letters")
    browser.press("\ue00c")  # Escape
    browser.until(lambda: not browser.js("return !!document.querySelector('dialog')"))
    browser.press("g", "d")
    browser.sees("by error")
    browser.press("g", "q")
    browser.sees("New queue", "mails.welcome")
    browser.press("/")
    browser.press("mails", "\ue007")
    browser.until(lambda: "filter=mails" in browser.driver.current_url)
    browser.until(lambda: "payments" not in browser.text())
    browser.js("document.activeElement.blur()")
    before = browser.js("return getComputedStyle(document.body).backgroundColor")
    browser.press("t")
    browser.until(
        lambda: browser.js("return getComputedStyle(document.body).backgroundColor") != before
    )
    browser.press("t", "p")
    browser.sees("Paused")
    browser.press("p")
    browser.sees("Live")


@pytest.mark.outer
@pytest.mark.parametrize("name", PAGES)
def test_tab_reaches_every_control_and_shows_where_it_is(
    board: Board, browser: Browser, name: str
) -> None:
    browser.open(path_of(board, name))
    browser.sees(PAGES[name][1][0])
    browser.press("p")  # a live update may add controls
    browser.js(
        "window.controls = () => [...document.querySelectorAll('a[href], button:not([disabled]), input,"
        'select, textarea, summary, [tabindex="0"]\')].filter((one) => one.getClientRects().length);'
        "document.activeElement?.blur(); window.reached = new Set(); window.hidden = [];"
        "document.addEventListener('focusin', ({ target }) => { window.reached.add(target);"
        "const style = getComputedStyle(target);"
        "if (style.outlineStyle === 'none' && style.boxShadow === 'none') hidden.push(target.outerHTML); });"
    )
    count = browser.js("return controls().length")
    for _ in range(count + 24):  # a field of a date has several parts
        browser.press(Keys.TAB)
    missed = browser.js(
        "return controls().filter((one) => !reached.has(one)).map((one) => one.outerHTML)"
    )
    browser.press("p")
    assert browser.js("return hidden") == []
    assert missed == []


@pytest.mark.outer
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 2560])
def test_every_page_fits_a_narrow_and_a_wide_screen(
    board: Board, browser: Browser, width: int, theme: str
) -> None:
    browser.open("", "Overview")
    browser.forget()  # the theme that another test has chosen
    browser.theme(theme)
    browser.size(width, 1400 if width > 1000 else 740)
    for name in PAGES:
        browser.open(path_of(board, name))
        browser.sees(PAGES[name][1][0])
        assert browser.js("return document.documentElement.scrollWidth") <= width, name
        browser.shot(f"{name}-{width}-{theme}")
    browser.theme("light")
    browser.size(1280, 900)


def test_a_message_is_found_by_its_id_alone(board: Board, browser: Browser) -> None:
    id = board.session.push("invoices.eu", {"wanted": True})[0]
    browser.open("", "Overview")
    browser.press("/")
    browser.press(id, "\ue007")
    browser.sees("No group has read this queue", '"wanted"')


def test_times_are_local_and_show_utc_on_hover(browser: Browser) -> None:
    browser.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Tokyo"})
    browser.open("queues/orders/tail", "later")
    utc, shown, title = browser.js(
        "const one = document.querySelector('.tail time');"
        "return [new Date(one.dateTime).getUTCHours(), one.textContent, one.title]"
    )
    browser.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": ""})
    assert f"{(utc + 9) % 24:02}:" in shown
    assert title
