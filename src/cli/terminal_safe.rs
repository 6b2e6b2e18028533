//! Escaping of untrusted text for the terminal: invisible characters are shown as code points (`\u{200b}`), shell
//! arguments are quoted.
//!
//! Control characters can manipulate a terminal; [`hidden_text`](mcpproxy_runtime::hidden_text) defines which characters
//! are invisible or change the appearance of others. Piped JSON and YAML keep every character; at a terminal these
//! characters are escaped, which preserves the value ([`json`], [`yaml`]). In emoji sequences the joiner and the
//! variation selector are shown too, because the same characters can hide text elsewhere.

use mcpproxy_runtime::hidden_text::is_hidden;
use serde_json::Value;
use std::borrow::Cow;
use std::fmt::Write as _;
use std::io;

/// Escapes invisible characters except newlines and tabs. For tool results, and for output that indents continuation
/// lines (paragraphs, cells, diffs).
pub(super) fn clean(text: &str) -> Cow<'_, str> {
    shown(text, |letter| is_hidden(letter) && !matches!(letter, '\n' | '\t'))
}

/// Escapes invisible characters, newlines and tabs included, for text on one line.
pub(super) fn line(text: &str) -> Cow<'_, str> {
    shown(text, is_hidden)
}

/// Joins the lines of a message; newlines and tabs become spaces.
pub(super) fn joined(text: &str) -> String {
    line(&text.replace(['\n', '\t'], " ")).into_owned()
}

/// A name as an argument of a suggested command; `NAME` if it cannot be quoted visibly.
pub(super) fn argument(name: &str) -> Cow<'_, str> {
    quoted(name).unwrap_or_else(|| "NAME".into())
}

/// Quotes an argument for a shell, on one line. `None` if it contains characters that cannot be quoted visibly.
pub(super) fn quoted(argument: &str) -> Option<Cow<'_, str>> {
    let visible = !argument.contains(is_hidden);
    shlex::try_quote(argument).ok().filter(|_| visible)
}

/// Escapes hidden characters in a JSON text (bidi controls, zero-width, C1 and similar) as `\u202e`. The value is
/// unchanged: except for white space between tokens, these characters occur only in strings.
pub(super) fn json(text: &str) -> Cow<'_, str> {
    let hides = |letter: char| is_hidden(letter) && !matches!(letter, '\n' | '\r' | '\t');
    if !text.contains(hides) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match hides(letter) {
            true => letter.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                let _ = write!(out, "\\u{unit:04x}");
            }),
            false => out.push(letter),
        }
    }
    Cow::Owned(out)
}

/// Serializes a value as YAML; strings with hidden characters are double-quoted and escaped.
///
/// The library quotes only unprintable characters, so these strings are first replaced by unique placeholders.
pub(super) fn yaml(value: &Value) -> Result<String, serde_yaml_ng::Error> {
    let hides = |letter: char| is_hidden(letter) && !matches!(letter, '\n' | '\t');
    let source = value.to_string();
    let mut word = "hidden".to_owned();
    while source.contains(&word) {
        word.push('x');
    }
    let mut quoted = Vec::new();
    let shown = replaced(value.clone(), &mut |text| match text.contains(hides) {
        true => {
            quoted.push(double_quoted(&text));
            format!("{word}-{}-", quoted.len() - 1)
        }
        false => text,
    });
    let mut text = serde_yaml_ng::to_string(&shown)?;
    for (at, quoted) in quoted.iter().enumerate() {
        text = text.replace(&format!("{word}-{at}-"), quoted);
    }
    Ok(text)
}

/// Maps all strings and keys of a value.
fn replaced(value: Value, replace: &mut impl FnMut(String) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(replace(text)),
        Value::Array(all) => all.into_iter().map(|it| replaced(it, replace)).collect(),
        Value::Object(all) => {
            let mut members = serde_json::Map::new();
            for (key, value) in all {
                let key = replace(key);
                members.insert(key, replaced(value, replace));
            }
            Value::Object(members)
        }
        plain @ (Value::Null | Value::Bool(_) | Value::Number(_)) => plain,
    }
}

/// Returns a double-quoted YAML string on one line.
fn double_quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        let _ = match (letter, u32::from(letter)) {
            ('"' | '\\', _) => write!(out, "\\{letter}"),
            _ if !is_hidden(letter) => write!(out, "{letter}"),
            (_, code) if code <= 0xffff => write!(out, "\\u{code:04x}"),
            (_, code) => write!(out, "\\U{code:08x}"),
        };
    }
    out.push('"');
    out
}

fn shown(text: &str, hides: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&hides) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match hides(letter) {
            true => {
                let _ = write!(out, "{}", letter.escape_unicode());
            }
            false => out.push(letter),
        }
    }
    Cow::Owned(out)
}

/// Writer for log lines that makes hidden characters visible. The color sequences of the formatter itself are kept; it
/// has already escaped those in field values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Visible<W>(pub(super) W);

impl<W: io::Write> io::Write for Visible<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The formatter writes whole lines and escapes ASCII control characters itself.
        if bytes.is_ascii() {
            self.0.write_all(bytes)?;
        } else {
            let text = String::from_utf8_lossy(bytes);
            let text = shown(&text, |letter| !letter.is_ascii() && is_hidden(letter));
            self.0.write_all(text.as_bytes())?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(clean("a\u{1b}[31mb\u{7}"), "a\\u{1b}[31mb\\u{7}");
        assert_eq!(clean("safe\n\ttext é 📖 日本 עברית ไทย"), "safe\n\ttext é 📖 日本 עברית ไทย");
        assert_eq!(clean("\u{202e}gpj.exe"), "\\u{202e}gpj.exe");
        assert_eq!(line("two\nlines"), "two\\u{a}lines");
        assert_eq!(joined("two\n\tlines\r"), "two  lines\\u{d}");
    }

    #[test]
    fn invisible_characters_are_shown_as_code_points() {
        for letter in "\u{200b}\u{61c}\u{3164}\u{e0041}\u{115f}\u{1160}\u{ffa0}\u{ad}\u{fe0f}\u{200d}\u{2028}\u{2029}\u{feff}\u{e000}\u{85}\u{2800}\u{180e}\u{2066}\u{fff9}\u{1d173}\u{34f}".chars() {
            let text = format!("a{letter}b");
            assert_eq!(clean(&text), format!("a{}b", letter.escape_unicode()));
        }
    }

    #[test]
    fn arguments_are_quoted_for_the_shell() {
        for (argument, expected) in [
            ("gh:delete_repo", Some("gh:delete_repo")),
            ("s:a b", Some("'s:a b'")),
            ("s:x; rm -rf ~", Some("'s:x; rm -rf ~'")),
            ("s:$(id)", Some("'s:$(id)'")),
            ("s:a\u{200b}", None),
            ("s:a\nb", None),
            ("s:\0", None),
        ] {
            assert_eq!(quoted(argument).as_deref(), expected, "{argument:?}");
        }
        let name = "s:it's `x` $HOME \\ !";
        assert_eq!(shlex::split(&quoted(name).unwrap()).unwrap(), [name]);
    }

    #[test]
    fn escaped_json_and_yaml_keep_their_value() {
        let hidden = "a\u{202e}b\u{200b}\u{85}\u{9b}\u{e0041}\u{7f}\u{feff}";
        for value in [
            serde_json::json!(hidden),
            serde_json::json!({hidden: [hidden, {"x": hidden, "hidden-0-": "hidden-0-"}], "plain": "é \"q\"\n\tb\\"}),
            serde_json::json!({"k": format!("\"{hidden}\" : # \\\n- x")}),
        ] {
            for text in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
                let shown = json(&text);
                assert!(!shown.contains(|it| is_hidden(it) && it != '\n'), "{shown:?}");
                assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), value);
            }
            let shown = yaml(&value).unwrap();
            assert!(!shown.contains(|it| is_hidden(it) && it != '\n'), "{shown:?}");
            assert_eq!(serde_yaml_ng::from_str::<Value>(&shown).unwrap(), value, "{shown}");
        }
        assert_eq!(json("{\"a\":\"\u{202e}\"}"), r#"{"a":"\u202e"}"#);
        assert!(matches!(json("{\n\t\"a\": \"é\"\r\n}"), Cow::Borrowed(_)));
    }

    #[test]
    fn log_lines_keep_colors_and_show_hidden_characters() {
        let mut written = Vec::new();
        let line = "\u{1b}[33m WARN\u{1b}[0m tool=a\u{200b}b é\n";
        Visible(&mut written).write_all(line.as_bytes()).unwrap();
        assert_eq!(
            String::from_utf8(written).unwrap(),
            "\u{1b}[33m WARN\u{1b}[0m tool=a\\u{200b}b é\n"
        );
    }
}
