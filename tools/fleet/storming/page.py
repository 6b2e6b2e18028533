"""The steps of the guide's page "From one machine to a fleet": its code blocks, with the addresses and folders of this
run.
"""

import re


class Page:
    """The blocks of the page in order, by language. `unused` are those that were not used yet."""

    def __init__(self, path):
        self.blocks = re.findall(r"^```(\w+)\n(.*?)^```$", path.read_text(), re.M | re.S)
        self.unused = set(range(len(self.blocks)))

    def take(self, language, holds):
        """The only block of this language that contains these words."""
        found = [at for at, (its, text) in enumerate(self.blocks) if its == language and holds in text]
        if len(found) != 1:
            raise SystemExit(f"the page has {len(found)} blocks of {language} with {holds!r}")
        self.unused.discard(found[0])
        return self.blocks[found[0]][1]


def moved(text, net, root):
    """The text with the addresses of this run in place of the page's, and its folders below `root`."""
    return text.replace("10.0.0.", f"{net}.").replace("/etc/", f"{root}/etc/").replace("/var/lib/", f"{root}/var/lib/")
