//! A server's block as another program writes it, read as the members of one of ours. Pure: what stands
//! in it is data, whatever a shell would make of it.

use serde_json::{Map, Value};

use crate::config::edit::check_new_name;
use crate::upstream::{self, ValuePart, value_parts};

/// Most characters of a name.
const NAME_CHARS: usize = 64;

/// The members of a server of ours, in the order in which people write them.
pub(in crate::cli) type EntryMembers = Vec<(String, Value)>;

/// What a server is called here, if it can be called anything.
pub(in crate::cli) fn name(theirs: &str) -> Option<String> {
    let plain = |letter: char| letter.is_alphanumeric() || matches!(letter, '-' | '_' | '.' | ' ');
    let letters = theirs.chars().map(|letter| if plain(letter) { letter } else { '-' });
    let name: String = letters.skip_while(|it| !it.is_alphanumeric()).take(NAME_CHARS).collect();
    let name = name.trim_end_matches([' ', '-']).to_owned();
    check_new_name(&name).is_ok().then_some(name)
}

/// The block as ours; the error says what of it cannot be used.
pub(in crate::cli) fn members(theirs: &Value) -> Result<EntryMembers, String> {
    let block = theirs.as_object().ok_or("it is no object")?;
    let mut members = EntryMembers::new();
    // Zed had the program and what belongs to it one level deeper.
    let inner = block.get("command").and_then(Value::as_object);
    let found = |keys: &[&str]| {
        let of = |block: &Map<String, Value>| keys.iter().find_map(|key| block.get(*key)).cloned();
        inner.and_then(of).or_else(|| of(block)).filter(|value| !value.is_null())
    };
    let command = match inner {
        Some(inner) => inner.get("path").cloned(),
        None => block.get("command").cloned(),
    };
    let url = found(&["url", "serverUrl", "httpUrl"]);
    let mut put = |key: &str, value: Value| members.push((key.to_owned(), value));
    let empty = |value: &Value| {
        value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
    };
    match (command, url) {
        (Some(command), _) => {
            put("command", command);
            for key in ["args", "env", "cwd"] {
                if let Some(value) = found(&[key]).filter(|value| !empty(value)) {
                    put(key, if key == "env" { filled_in(value) } else { value });
                }
            }
        }
        (None, Some(url)) => {
            let known =
                |url: &str| ["https:", "http:", "unix:", "${"].iter().any(|it| url.starts_with(it));
            if !url.as_str().is_some_and(known) {
                return Err("its url is none of https, http or unix".to_owned());
            }
            put("url", filled_in(url));
            let headers = headers(&found)?;
            if !headers.is_empty() {
                put("headers", Value::Object(headers));
            }
        }
        (None, None) => return Err("it has neither a command nor a url".to_owned()),
    }
    let says = |key: &str, value: bool| block.get(key) == Some(&Value::Bool(value));
    if says("disabled", true) || says("enabled", false) {
        put("enabled", false.into());
    }
    let entry = Value::Object(members.iter().cloned().collect());
    if entry.as_object().into_iter().flatten().any(|(_, value)| names_what_is_kept(value)) {
        return Err("it names a file, a credential or a keyring of this machine: only here would \
                    that be filled in, so add it by hand, with `mcpproxy upstream add`"
            .to_owned());
    }
    match serde_json::from_value::<upstream::Config>(entry) {
        Ok(_) => Ok(members),
        // It would quote what is there.
        Err(_) => Err("its command, args, env, url or headers are of another type than they \
                       should be"
            .to_owned()),
    }
}

/// What does something in the other program and is not carried over, as it stands there: to be checked with our entry.
pub(in crate::cli) fn left_out(theirs: &Value) -> impl Iterator<Item = (String, Value)> {
    let block = theirs.as_object().into_iter().flatten();
    let left = block.filter(|(key, _)| ["type", "transport", "envFile"].contains(&key.as_str()));
    left.map(|(key, value)| (key.clone(), value.clone()))
}

/// The headers, with those that Codex names elsewhere.
fn headers(found: &impl Fn(&[&str]) -> Option<Value>) -> Result<Map<String, Value>, String> {
    let object = |keys: &[&str]| match found(keys) {
        None => Ok(Map::new()),
        Some(Value::Object(members)) => Ok(members),
        Some(_) => Err(format!("its {} are no object", keys.join(" or "))),
    };
    let mut headers = object(&["headers", "http_headers"])?;
    headers.values_mut().for_each(|value| *value = filled_in(value.take()));
    for (name, variable) in object(&["env_http_headers"])? {
        if let Some(variable) = variable.as_str() {
            headers.insert(name, format!("${{env:{variable}}}").into());
        }
    }
    if let Some(Value::String(variable)) = found(&["bearer_token_env_var"]) {
        headers.insert("Authorization".to_owned(), format!("Bearer ${{env:{variable}}}").into());
    }
    Ok(headers)
}

/// Whether our entry would read what is plain text to the other program, and send it to whoever wrote that.
fn names_what_is_kept(value: &Value) -> bool {
    match value {
        Value::String(text) => value_parts(text).iter().any(|it| matches!(it, ValuePart::Kept(_))),
        Value::Array(elements) => elements.iter().any(names_what_is_kept),
        Value::Object(members) => members.values().any(names_what_is_kept),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// `${NAME}`, which some programs fill in from the environment, as `${env:NAME}`.
fn filled_in(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(variables(&text)),
        Value::Object(members) => {
            members.into_iter().map(|(key, value)| (key, filled_in(value))).collect()
        }
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_)) => other,
    }
}

fn variables(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        out.push_str(before);
        let name = after.split('}').next().unwrap_or_default();
        let is_name = name.len() < after.len()
            && !name.is_empty()
            && name.chars().all(|it| it.is_ascii_alphanumeric() || it == '_');
        out.push_str(if is_name { "${env:" } else { "${" });
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(block: Value) -> Result<Value, String> {
        members(&block).map(|members| Value::Object(members.into_iter().collect()))
    }

    #[test]
    fn every_programs_form_is_read() {
        for (theirs, ours) in [
            (
                json!({"command": "npx", "args": ["-y"], "env": {}}),
                json!({"command": "npx", "args": ["-y"]}),
            ),
            (
                json!({"type": "http", "url": "http://h", "headers": {"A": "Bearer ${TOKEN}"}}),
                json!({"url": "http://h", "headers": {"A": "Bearer ${env:TOKEN}"}}),
            ),
            (
                json!({"serverUrl": "http://h", "disabled": true}),
                json!({"url": "http://h", "enabled": false}),
            ),
            (
                json!({"source": "custom", "command": {"path": "x", "args": ["a"], "env": {"K": "v"}}}),
                json!({"command": "x", "args": ["a"], "env": {"K": "v"}}),
            ),
            (json!({"source": "custom", "command": "x", "args": []}), json!({"command": "x"})),
            (
                json!({"url": "http://h", "bearer_token_env_var": "T", "http_headers": {"A": "b"}, "env_http_headers": {"C": "D"}}),
                json!({"url": "http://h", "headers": {"A": "b", "C": "${env:D}", "Authorization": "Bearer ${env:T}"}}),
            ),
            (
                json!({"command": "x; rm -rf / $(id)", "args": ["`id`"]}),
                json!({"command": "x; rm -rf / $(id)", "args": ["`id`"]}),
            ),
        ] {
            assert_eq!(read(theirs), Ok(ours));
        }
        for bad in [
            json!(7),
            json!({}),
            json!({"command": 7}),
            json!({"command": "x", "args": "y"}),
            json!({"command": "x", "env": {"K": 7}}),
            json!({"url": "u", "headers": []}),
            json!({"command": {}}),
            json!({"command": "x", "env": {"K": "a ${file:~/.ssh/id_rsa}"}}),
            json!({"url": "https://h/${credential:c}"}),
            json!({"url": "https://h", "headers": {"A": "${keyring:s/u}"}}),
        ] {
            assert!(read(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_become_plain_ones() {
        for (theirs, ours) in [
            ("github", Some("github")),
            ("microsoft/playwright-mcp", Some("microsoft-playwright-mcp")),
            ("../../etc/passwd", Some("etc-passwd")),
            ("a:b", Some("a-b")),
            ("a\u{1b}[31m\nb", Some("a--31m-b")),
            ("\u{202e}x", Some("x")),
            ("..", None),
            ("", None),
            ("\0", None),
        ] {
            assert_eq!(name(theirs).as_deref(), ours, "{theirs:?}");
        }
        assert_eq!(name(&"x".repeat(1000)).unwrap().len(), 64);
    }

    #[test]
    fn variables_become_ours() {
        assert_eq!(variables("a${B}c${env:D}${E"), "a${env:B}c${env:D}${E");
    }
}
