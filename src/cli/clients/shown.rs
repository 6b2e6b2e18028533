//! A server's entry as it is shown before somebody agrees to it: without what is secret in it, and with all that decides
//! which code runs.
//!
//! Too much is hidden rather than too little, of values alone: options and names are shown, and so is always what a value
//! names, and what loaders and interpreters read. Nobody is to agree to what they do not see.

use serde_json::Value;

use super::block::EntryMembers;
use crate::secrets::{MASKED, Secrets};
use crate::upstream::{self, is_plain_header};

/// Variables by which loaders, interpreters and package managers find the code that they run.
const CODE: [&str; 20] = [
    "BASH_ENV",
    "CLASSPATH",
    "DENO_DIR",
    "DOCKER_HOST",
    "DOTNET_STARTUP_HOOKS",
    "ENV",
    "GCONV_PATH",
    "GEM_HOME",
    "GEM_PATH",
    "HOME",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "LUA_CPATH",
    "LUA_INIT",
    "LUA_PATH",
    "PATH",
    "RUSTC_WRAPPER",
    "SHELL",
    "VIRTUAL_ENV",
    "_JAVA_OPTIONS",
];
/// What the names of others begin with, in capitals.
const CODE_PREFIXES: [&str; 15] = [
    "BUN_",
    "COREPACK_",
    "DYLD_",
    "GIT_",
    "LD_",
    "NODE_",
    "NPM_CONFIG_",
    "OPENSSL_",
    "PERL5",
    "PIP_",
    "PNPM_",
    "PYTHON",
    "RUBY",
    "UV_",
    "YARN_",
];

/// What is part of a name that says of its value that it is secret.
const SECRET_PARTS: [&str; 10] = [
    "apikey",
    "cookie",
    "credential",
    "passphrase",
    "passwd",
    "password",
    "private",
    "secret",
    "token",
    "webhook",
];
/// The same as a word by itself: within others these are parts of harmless ones.
const SECRET_WORDS: [&str; 14] = [
    "auth",
    "authorization",
    "bearer",
    "dsn",
    "jwt",
    "key",
    "keys",
    "pass",
    "pat",
    "pin",
    "pw",
    "pwd",
    "session",
    "sig",
];
/// Words of a name that says where something is, not what.
const PLACES: [&str; 5] = ["dir", "file", "folder", "path", "store"];

/// What an option says of what comes behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    Secret,
    Header,
    Other,
}

/// The members as they may be shown.
pub(in crate::cli) fn shown(members: &[(String, Value)]) -> EntryMembers {
    let entry = Value::Object(members.iter().cloned().collect());
    let entry: upstream::Config = serde_json::from_value(entry).unwrap_or_default();
    let secrets = Secrets::new(entry.secrets());
    let show = |(key, value): &(String, Value)| {
        let shown = match (key.as_str(), value) {
            ("env", Value::Object(values)) => of_each(values, variable),
            ("headers" | "http_headers", Value::Object(values)) => of_each(values, header_value),
            ("args", Value::Array(elements)) => arguments(elements, &secrets),
            (_, Value::String(text)) if text.contains("://") => url(text, &secrets).into(),
            (_, other) => other.clone(),
        };
        (key.clone(), shown)
    };
    members.iter().map(show).collect()
}

/// What to look at twice: values that decide which code runs.
pub(in crate::cli) fn warnings(members: &[(String, Value)]) -> Vec<String> {
    let env = members.iter().filter(|(key, _)| key == "env");
    let names = env.filter_map(|(_, value)| value.as_object()).flat_map(|values| values.keys());
    let told = |name: &String| format!("env.{name}: decides which code runs: look at its value");
    names.filter(|name| is_code(name)).map(told).collect()
}

fn of_each(values: &serde_json::Map<String, Value>, show: impl Fn(&str, &str) -> String) -> Value {
    let shown = values.iter().map(|(name, value)| {
        let value = value.as_str().map_or(Value::Null, |value| show(name, value).into());
        (name.clone(), value)
    });
    Value::Object(shown.collect())
}

fn variable(name: &str, value: &str) -> String {
    // A package manager's password begins like its options. Git's settings are numbered, each name beside its value: that may be
    // a header with a token.
    let upper = name.to_ascii_uppercase();
    let is_setting = upper.starts_with("GIT_CONFIG_VALUE_") || upper == "GIT_CONFIG_PARAMETERS";
    let is_its_name = upper.starts_with("GIT_CONFIG_KEY_");
    if !is_code(name) || is_setting || (is_secret(name) && !is_its_name) {
        return hidden(value);
    }
    // An index of packages may have a password in its URL.
    let words = value.split(' ').map(|word| match word.contains("://") {
        true => url(word, &Secrets::default()),
        false => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

fn header_value(name: &str, value: &str) -> String {
    if is_plain_header(name) { value.to_owned() } else { hidden(value) }
}

fn arguments(elements: &[Value], secrets: &Secrets) -> Value {
    let mut behind = Behind::Other;
    let show = |element: &Value| {
        let text = element.as_str().unwrap_or_default();
        let (shown, next) = match behind {
            Behind::Secret => (hidden(text), Behind::Other),
            Behind::Header => (header(text), Behind::Other),
            Behind::Other => argument(text, secrets),
        };
        behind = next;
        Value::from(shown)
    };
    elements.iter().map(show).collect()
}

/// An argument, and what it says of the next one.
fn argument(text: &str, secrets: &Secrets) -> (String, Behind) {
    if !text.starts_with('-') {
        return (word(text, secrets), Behind::Other);
    }
    if let Some((option, value)) = text.split_once('=') {
        let shown = match behind(option) {
            Behind::Secret => hidden(value),
            Behind::Header => header(value),
            Behind::Other => word(value, secrets),
        };
        return (format!("{option}={shown}"), Behind::Other);
    }
    match text.strip_prefix("-H").filter(|rest| rest.contains(':')) {
        Some(rest) => (format!("-H{}", header(rest)), Behind::Other),
        None if text.contains(':') => (word(text, secrets), Behind::Other),
        None => (text.to_owned(), behind(text)),
    }
}

fn behind(option: &str) -> Behind {
    let name = option.trim_start_matches('-');
    let is_header =
        name == "H" || name.to_ascii_lowercase().trim_end_matches('s').ends_with("header");
    match is_header {
        true => Behind::Header,
        false if is_secret(name) => Behind::Secret,
        false => Behind::Other,
    }
}

/// `NAME: value`
fn header(text: &str) -> String {
    match text.split_once(':') {
        Some((name, value)) => {
            let blank = if value.starts_with(' ') { " " } else { "" };
            format!("{name}:{blank}{}", header_value(name.trim(), value.trim()))
        }
        None => hidden(text),
    }
}

/// What is no option, and follows none that says what it is.
fn word(text: &str, secrets: &Secrets) -> String {
    let is_name = |name: &str| {
        !name.is_empty() && name.chars().all(|it| it.is_ascii_alphanumeric() || "-_.".contains(it))
    };
    if let Some((name, value)) = text.split_once('=').filter(|(name, _)| is_name(name))
        && is_secret(name)
    {
        return format!("{name}={}", hidden(value));
    }
    if let Some((name, _)) = text.split_once(':').filter(|(name, _)| is_name(name))
        && is_secret(name)
    {
        return header(text);
    }
    match text.contains("://") {
        true => text.split(' ').map(|it| url(it, secrets)).collect::<Vec<_>>().join(" "),
        false => masked(text, secrets),
    }
}

/// A URL without its user and the values of its query, and without what looks secret in its path.
fn url(text: &str, secrets: &Secrets) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return masked(text, secrets) };
    let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let authority = match authority.rsplit_once('@') {
        Some((user, host)) => format!("{}@{host}", hidden(user)),
        None => authority.to_owned(),
    };
    let (path, query) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
    let query = query.split_inclusive(['?', '&', '#']).map(|pair| {
        let (pair, end) = match pair.strip_suffix(['?', '&', '#']) {
            Some(inner) => pair.split_at(inner.len()),
            None => (pair, ""),
        };
        let shown = match pair.split_once('=') {
            Some((name, value)) => format!("{name}={}", hidden(value)),
            None => hidden(pair),
        };
        shown + end
    });
    format!("{scheme}://{authority}{}{}", masked(path, secrets), query.collect::<String>())
}

/// A text without what of it is secret by its own look.
fn masked(text: &str, secrets: &Secrets) -> String {
    pieces(text, |plain| {
        String::from_utf8_lossy(&secrets.mask(plain.as_bytes(), false)).into_owned()
    })
}

/// What may be a secret, at any length, but for what it names.
fn hidden(text: &str) -> String {
    pieces(text, |plain| match plain {
        "Bearer " | "bearer " => plain.to_owned(),
        _ => MASKED.to_owned(),
    })
}

/// A text whose `${…}` stay, and whose other pieces are shown by `show`.
fn pieces(text: &str, show: impl Fn(&str) -> String) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let (plain, named) = rest.split_at(start);
        let Some(end) = named.find('}') else { break };
        let (named, after) = named.split_at(end + 1);
        if !plain.is_empty() {
            shown += &show(plain);
        }
        shown += named;
        rest = after;
    }
    if !rest.is_empty() {
        shown += &show(rest);
    }
    shown
}

fn is_code(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    CODE.contains(&name.as_str()) || CODE_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether a name says that its value is secret.
fn is_secret(name: &str) -> bool {
    let words = words(name);
    let joined = words.concat();
    let is_secret = SECRET_PARTS.iter().any(|part| joined.contains(part))
        || words.iter().any(|word| SECRET_WORDS.contains(&word.as_str()));
    is_secret && !words.last().is_some_and(|last| PLACES.contains(&last.as_str()))
}

/// The words of a name in `kebab-case`, `snake_case` or `camelCase`, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for char in name.chars() {
        if !char.is_alphanumeric() || (was_lower && char.is_uppercase()) {
            words.push(String::new());
        }
        if let (true, Some(word)) = (char.is_alphanumeric(), words.last_mut()) {
            word.extend(char.to_lowercase());
        }
        was_lower = char.is_lowercase();
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::clients::block;

    fn of(block: Value) -> Value {
        Value::Object(shown(&block::members(&block).unwrap()).into_iter().collect())
    }

    fn args(args: &[&str]) -> Vec<String> {
        let shown = of(json!({"command": "npx", "args": args}))["args"].clone();
        serde_json::from_value(shown).unwrap()
    }

    #[test]
    fn nothing_secret_is_shown_however_short_it_is() {
        for (given, expected) in [
            (&["--password", "abc12"][..], &["--password", "[redacted]"][..]),
            (&["--token=abc"], &["--token=[redacted]"]),
            (&["--apiKey", "a"], &["--apiKey", "[redacted]"]),
            (&["-Dpassword=letmein"], &["-Dpassword=[redacted]"]),
            (&["-e", "GITHUB_TOKEN=abc"], &["-e", "GITHUB_TOKEN=[redacted]"]),
            (
                &["--header", "Authorization: Bearer abc-def-ghi-jkl"],
                &["--header", "Authorization: [redacted]"],
            ),
            (&["--header=X-Org:acme"], &["--header=X-Org:[redacted]"]),
            (&["-H", "accept: text/plain"], &["-H", "accept: text/plain"]),
            (&["-HX-Org: acme"], &["-HX-Org: [redacted]"]),
            (&["Authorization: Bearer ab"], &["Authorization: [redacted]"]),
            (
                &["https://u:p@h.example/mcp?key=abc12&x"],
                &["https://[redacted]@h.example/mcp?key=[redacted]&[redacted]"],
            ),
            (&["a1b2c3d4e5f6"], &["[redacted]"]),
        ] {
            assert_eq!(args(given), expected);
        }
        let shown = of(json!({"url": "https://u@h.example:9/0123456789abcdef/mcp?key=abc12#abc",
            "headers": {"X-Key": "k", "Accept": "text/plain"}}));
        assert_eq!(
            shown["url"],
            "https://[redacted]@h.example:9/[redacted]/mcp?key=[redacted]#[redacted]"
        );
        assert_eq!(shown["headers"], json!({"X-Key": "[redacted]", "Accept": "text/plain"}));
    }

    #[test]
    fn what_is_named_is_always_shown() {
        let url =
            of(json!({"url": "https://h/${A}?k=${AWS_SECRET_ACCESS_KEY}&l=x${env:B}"}))["url"]
                .clone();
        assert_eq!(url, "https://h/${env:A}?k=${env:AWS_SECRET_ACCESS_KEY}&l=[redacted]${env:B}");
        let entry = of(json!({"command": "x", "args": ["--token", "${TOKEN}", "--key=a${KEY}b"],
            "env": {"A": "plain", "B": "${env:B}", "C": "plain ${TOKEN}"}}));
        assert_eq!(
            entry["args"],
            json!(["--token", "${TOKEN}", "--key=[redacted]${KEY}[redacted]"])
        );
        let env = json!({"A": "[redacted]", "B": "${env:B}", "C": "[redacted]${env:TOKEN}"});
        assert_eq!(entry["env"], env);
        assert_eq!(hidden("Bearer ${env:T}"), "Bearer ${env:T}");
        assert_eq!(hidden("${unclosed"), "[redacted]");
    }

    #[test]
    fn what_decides_which_code_runs_is_shown_and_warned_of() {
        let block = json!({"command": "npx", "args": ["-y", "pkg", "--path", "data", "--pattern", "x", "--key-file", "/k.pem"],
            "env": {"LD_PRELOAD": "/tmp/evil1234.so", "NODE_OPTIONS": "--require ./evil.js",
                "npm_config_registry": "https://u:secret@evil.example/", "TOKEN": "abc",
                "BUN_CONFIG_REGISTRY": "https://evil.example/", "GIT_CONFIG_KEY_0": "http.extraheader",
                "GIT_CONFIG_VALUE_0": "AUTHORIZATION: basic eC1h", "NODE_AUTH_TOKEN": "abc"}});
        let shown = of(block.clone());
        assert_eq!(shown["args"], block["args"]);
        let env = json!({"LD_PRELOAD": "/tmp/evil1234.so", "NODE_OPTIONS": "--require ./evil.js",
            "npm_config_registry": "https://[redacted]@evil.example/", "TOKEN": "[redacted]",
            "BUN_CONFIG_REGISTRY": "https://evil.example/", "GIT_CONFIG_KEY_0": "http.extraheader",
            "GIT_CONFIG_VALUE_0": "[redacted]", "NODE_AUTH_TOKEN": "[redacted]"});
        assert_eq!(shown["env"], env);
        let told = warnings(&block::members(&block).unwrap());
        assert_eq!(told.len(), 7, "{told:?}");
        assert!(told.iter().any(|it| it.starts_with("env.LD_PRELOAD: decides which code runs")));
    }
}
