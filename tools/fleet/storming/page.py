"""The steps of the guide's page "From one machine to a fleet", as they are run: its blocks, with other addresses and folders."""

import re


class Page:
    """Each block of the page, in its order, by its language. `unused` are those that nobody has taken."""

    def __init__(self, path):
        self.blocks = re.findall(r"^```(\w+)\n(.*?)^```$", path.read_text(), re.M | re.S)
        self.unused = set(range(len(self.blocks)))

    def take(self, language, holds):
        """The one block in that language that has those words."""
        found = [at for at, (its, text) in enumerate(self.blocks) if its == language and holds in text]
        if len(found) != 1:
            raise SystemExit(f"the page has {len(found)} blocks of {language} with {holds!r}")
        self.unused.discard(found[0])
        return self.blocks[found[0]][1]


def moved(text, net, root):
    """With the addresses of this run in place of the page's, and its folders below `root`."""
    return text.replace("10.0.0.", f"{net}.").replace("/etc/", f"{root}/etc/").replace("/var/lib/", f"{root}/var/lib/")
