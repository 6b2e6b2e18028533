"""login.py BINARY NODE CLIENT URL: mcpproxy itself is the client of an `auth/` scenario.

The script plays the part of the user: `mcpproxy upstream login`, the page that it names, and the same again if a server
requires a further scope. The proxy is restarted between logins, so that its state is current and nothing has to be
waited for. A client that needs no person gets its tokens without these steps.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

import suite

# More logins than necessary: mcpproxy must end a series of logins.
LOGINS = 6
LOGIN_SECONDS = "10s"
STATE_SECONDS = 30
LOGIN_COMMAND = f"mcpproxy upstream login {suite.SERVER}"


def main() -> int:
    binary, node, client, url = sys.argv[1:]
    name = f"login-{os.environ['MCP_CONFORMANCE_SCENARIO'].replace('/', '-')}-{os.getpid()}"
    oauth = settings()
    config = suite.configured(url, name, oauth=oauth)
    for _ in range(LOGINS):
        if "grant" not in oauth and not logged_in([binary, "--config", config.path, "-o", "json"]):
            return 1
        with suite.served(binary, config):
            env = os.environ | {"PREFIX": f"{suite.SERVER}__"}
            argv = [node, client, config.url + "/all"]
            ended = subprocess.run(argv, env=env, stdout=subprocess.PIPE, text=True)
            reason = state_reason(config, expected=LOGIN_COMMAND in ended.stdout)
        print(f"{ended.stdout}the client ended with {ended.returncode}; state: {reason}", flush=True)
        if LOGIN_COMMAND not in reason:
            return ended.returncode
    print("mcpproxy asks for logins without end")
    return 1


def state_reason(config: suite.Config, expected: bool) -> str:
    """The reason in the server's state. The state may change after the answer to a call, once the scopes that the
    server requires are on disk.
    """
    deadline = time.monotonic() + STATE_SECONDS
    while not (reason := config.state()["reason"]) and expected and time.monotonic() < deadline:
        time.sleep(0.05)
    return reason


def settings() -> dict:
    """Config that an operator would write: a manually registered client, or one described by a document at a URL."""
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    known = {name: context[name] for name in ("client_id", "client_secret", "issuer") if name in context}
    if os.environ["MCP_CONFORMANCE_SCENARIO"] == "auth/client-credentials-basic":
        known["grant"] = "client_credentials"
    if os.environ["MCP_CONFORMANCE_SCENARIO"] == "auth/basic-cimd":
        known["client_metadata_url"] = "https://conformance-test.local/client-metadata.json"
    return known


def logged_in(command: list[str]) -> bool:
    """Runs the login and opens the page that it names."""
    argv = [*command, "upstream", "login", suite.SERVER, "--timeout", LOGIN_SECONDS]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as login:
        for line in login.stderr:
            print(line, end="", flush=True)
            with contextlib.suppress(ValueError, KeyError, TypeError, urllib.error.URLError):
                urllib.request.urlopen(json.loads(line)["open"], timeout=10).close()
    return login.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
