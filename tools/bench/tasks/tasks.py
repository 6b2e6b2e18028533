"""The tasks: the user's request, the facts it contains, and the check that it was done in the world.

The tasks were written before the agent was first run. They express what people want from such servers, in words other
than those of the tools, and were not reworded to improve the figures. A fact has the label that a user would give it.
`slip` is a typical mistake of models, which the first call of the task makes.
"""

import base64
import gzip
import re
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from agent import Fact, Task
from world import World


def facts(**named) -> list[Fact]:
    return [Fact(label.replace("_", " "), value) for label, value in named.items()]


def all_tasks(world: World, page: str) -> list[Task]:
    return [*on_files(world), *on_memory(world), *on_repositories(world), *on_the_rest(world, page)]


def on_files(world: World) -> list[Task]:
    at, text = world.path, world.text
    has = lambda *parts: lambda answer: all(part in answer for part in parts)
    return [
        Task("note", "put down a short note in a text file",
             facts(file=at("note.txt"), text="Ring the plumber."),
             lambda _: text("note.txt") == "Ring the plumber.", slip="no intent"),
        Task("shopping", "what does my shopping list say", facts(file=at("lists/shopping.txt")),
             has("oats\nplums\nsoap"), reads=True),
        Task("correction", "correct a phrase in a letter",
             facts(file=at("letters/offer.txt"), old_text="on Tuesday", new_text="on Friday"),
             lambda _: "deliver on Friday." in text("letters/offer.txt"), slip="wrong variant"),
        Task("holiday", "I need a fresh folder for the holiday pictures", facts(folder=at("photos/holiday")),
             lambda _: (world.root / "photos/holiday").is_dir(), slip="misspelled parameter"),
        Task("bills", "what is in this folder", facts(folder=at("bills")),
             has("march.txt", "april.txt"), reads=True),
        Task("largest", "which of the pictures in a folder takes up the most space",
             facts(folder=at("photos"), order="size"),
             lambda answer: re.search(r"(?s)large\.jpg.*middle\.jpg.*small\.jpg", answer), reads=True),
        Task("garden", "show the whole structure of a folder with everything nested in it",
             facts(folder=at("garden")), has("beds", "north", "plan.txt", "seeds.txt"), reads=True),
        Task("rename", "give a report another name",
             [Fact("from", at("reports/draft.md")), Fact("to", at("reports/final.md"))],
             lambda _: text("reports/final.md") == "# Draft\n" and not (world.root / "reports/draft.md").exists(),
             slip="wrong variant"),
        Task("csv", "where did I put everything that ends in csv",
             facts(folder=at("reports"), pattern="**/*.csv"), has("2024.csv", "2023.csv"), reads=True),
        Task("contract", "how big is this document and when was it last changed",
             facts(file=at("contract.txt")), lambda answer: re.search(r"\b1234\b", answer), reads=True),
        Task("chapters", "read both chapters at once",
             [Fact("file", [at("book/one.txt"), at("book/two.txt")])],
             has("a bright cold day", "clocks were striking"), reads=True),
        Task("log", "just the last lines of a log file", facts(file=at("logs/app.log"), last=2),
             lambda answer: "line 40" in answer and "line 38\n" not in answer, reads=True, slip="wrong type"),
        Task("allowed", "in which folders may you work", [], has(str(world.root)), reads=True),
    ]


def on_memory(world: World) -> list[Task]:
    entity = lambda name: world.graph()[0].get(name, {})
    known = lambda name: entity(name).get("observations", [])
    has = lambda *parts: lambda answer: all(part in answer for part in parts)
    return [
        Task("acquaintance", "remember somebody new: who she is and what she likes",
             facts(person="Ada Park", kind="person", observation=["likes green tea"]),
             lambda _: known("Ada Park") == ["likes green tea"], slip="wrong type"),
        Task("one more thing", "keep in mind one more thing about a colleague",
             facts(person="Bruno Weiss", observation=["is allergic to nuts"]),
             lambda _: known("Bruno Weiss") == ["plays the cello", "lives in Graz", "is allergic to nuts"]),
        Task("job", "remember that she works for a company",
             [Fact("from", "Clara Diaz"), Fact("to", "Acme Ltd"), Fact("relation", "works at")],
             lambda _: ("Clara Diaz", "works at", "Acme Ltd") in world.graph()[1], slip="misspelled tool"),
        Task("tea", "whom do you know who drinks tea", facts(words="jasmine"), has("Clara Diaz"), reads=True,
             slip="no server"),
        Task("Farid", "tell me everything you know about a person", facts(person=["Farid Khan"]),
             has("red car", "speaks Dari"), reads=True, slip="wrong type"),
        Task("goodbye", "forget this person completely", facts(person=["Dmitri Orlov"]),
             lambda _: not entity("Dmitri Orlov") and entity("Farid Khan"), slip="other intent"),
        Task("sold the car", "that is no longer true, forget this one thing about him",
             facts(person="Farid Khan", observation=["owns a red car"]),
             lambda _: known("Farid Khan") == ["speaks Dari"]),
        Task("quarrel", "they are friends no more: take away the link between the two",
             [Fact("from", "Emma Stone-Hill"), Fact("to", "Farid Khan"), Fact("relation", "is a friend of")],
             lambda _: not any("friend" in link[1] for link in world.graph()[1]) and entity("Emma Stone-Hill")),
        Task("memory", "show all that you keep in your memory", [], has("Bruno Weiss", "Acme Ltd"), reads=True),
    ]


def on_repositories(world: World) -> list[Task]:
    at = lambda name: world.path(f"code/{name}")
    has = lambda *parts: lambda answer: all(part in answer for part in parts)
    staged = lambda name: world.git(name, "diff", "--cached", "--name-only").split()
    first = world.git("looked-at", "rev-list", "--max-parents=0", "HEAD").strip()
    return [
        Task("pending", "have I got work in my repository that is not recorded yet",
             facts(repository=at("looked-at")), has("switch.py"), reads=True, slip="misspelled tool"),
        Task("lately", "who recorded what in the repository lately", facts(repository=at("looked-at"), count=2),
             lambda answer: "say what it is" in answer and "a switch" not in answer, reads=True,
             slip="misspelled optional"),
        Task("record", "record what I have staged in the repository",
             facts(repository=at("to-commit"), message="the lamp may be neither"),
             lambda _: world.git("to-commit", "log", "-1", "--format=%s").strip() == "the lamp may be neither"
             and not staged("to-commit"), slip="misspelled parameter"),
        Task("prepare", "put a file aside for the next commit",
             [Fact("repository", at("to-stage")), Fact("file", ["lamp.py"])],
             lambda _: staged("to-stage") == ["lamp.py"], slip="args misnamed"),
        Task("new line", "start a new line of development",
             facts(repository=at("to-branch"), branch="feature/shade"),
             lambda _: "feature/shade" in world.git("to-branch", "branch", "--list"), slip="missing parameter"),
        Task("go over", "go over to the other branch", facts(repository=at("to-switch"), branch="feature/lamp"),
             lambda _: world.git("to-switch", "branch", "--show-current").strip() == "feature/lamp"),
        Task("ahead", "what is different between my branch and the main one",
             facts(repository=at("apart"), against="main"), has("bulb.py"), reads=True, slip="missing parameter"),
        Task("take back", "take everything out of the next commit again", facts(repository=at("to-unstage")),
             lambda _: not staged("to-unstage") and "on = 3" in world.text("code/to-unstage/lamp.py"),
             slip="wrong variant"),
        Task("first commit", "what was in this commit", facts(repository=at("looked-at"), commit=first),
             has("a lamp that is off", "on = False"), reads=True),
        Task("lines", "which lines of development are there", facts(repository=at("looked-at"), kind="local"),
             has("main", "feature/lamp"), reads=True),
        Task("unsaved", "what exactly have I changed since I last staged something",
             facts(repository=at("looked-at")), has("return 1"), reads=True),
    ]


def on_the_rest(world: World, page: str) -> list[Task]:
    return [
        Task("Tokyo", "Wie spät ist es gerade in Tokio?", facts(place="Asia/Tokyo"),
             now_in("Asia/Tokyo"), reads=True, slip="misspelled parameter"),
        Task("call", "when it is that time here, what time is it over there",
             facts(from_zone="America/New_York", time="09:30", to_zone="Europe/Berlin"),
             converted("America/New_York", "09:30", "Europe/Berlin"), reads=True, slip="no intent"),
        Task("tides", "read me what this web page says", facts(page=f"{page}/tides"),
             lambda answer: "14:52 on Thursday" in answer and "/tides" in world.asked, reads=True),
        Task("source", "the HTML source of a web page, as it is",
             facts(page=f"{page}/tides?source", unprocessed=True),
             lambda answer: "<main><h1>" in answer and "/tides?source" in world.asked, reads=True, slip="wrong type"),
        Task("sum", "add up two amounts", [Fact("first", 17.5), Fact("second", 24.25)],
             lambda answer: re.search(r"\b41\.75\b", answer), reads=True, slip="wrong type"),
        Task("weather", "how is the weather in Chicago", facts(city="Chicago"),
             lambda answer: "temperature" in answer and "conditions" in answer, reads=True, slip="missing parameter"),
        Task("zip", "compress this data", facts(data="data:text/plain;base64,aGVsbG8gaGVsbG8=", output="resource"),
             unzips_to(b"hello hello")),
    ]


def now_in(zone: str):
    def check(answer: str) -> bool:
        told = re.search(r'"datetime":\s*"([^"]+)"', answer)
        there = datetime.now(ZoneInfo(zone))
        told = told and datetime.fromisoformat(told[1])
        return bool(told) and abs(told - there) < timedelta(minutes=2) and told.utcoffset() == there.utcoffset()

    return check


def converted(zone: str, time: str, other: str):
    def check(answer: str) -> bool:
        hour, minute = map(int, time.split(":"))
        there = datetime.now(ZoneInfo(zone)).replace(hour=hour, minute=minute).astimezone(ZoneInfo(other))
        return there.strftime("T%H:%M") in answer

    return check


def unzips_to(expected: bytes):
    def check(answer: str) -> bool:
        blob = re.search(r'"blob":\s*"([^"]+)"', answer)
        return bool(blob) and gzip.decompress(base64.b64decode(blob[1])) == expected

    return check
