//! How a text is laid out, and how a value is written into it in the same way. Pure.

use jsonc_parser::common::Ranged;
use serde_json::{Map, Value};

use crate::config::document::ConfigDocument;

/// Indentation where the text shows none.
const INDENT: &str = "  ";
/// Most characters of a list that is written on one line.
const SHORT_LIST: usize = 100;

/// A value to be written, its members in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WrittenValue {
    /// Any value; the members of an object as they come.
    Value(Value),
    /// An object.
    Members(Vec<(String, WrittenValue)>),
}

impl From<Value> for WrittenValue {
    fn from(value: Value) -> Self {
        Self::Value(value)
    }
}

impl WrittenValue {
    /// What it says, without an order.
    #[must_use]
    pub fn value(&self) -> Value {
        match self {
            Self::Value(value) => value.clone(),
            Self::Members(members) => {
                let members = members.iter().map(|(key, value)| (key.clone(), value.value()));
                Value::Object(members.collect::<Map<_, _>>())
            }
        }
    }
}

/// How a text is laid out.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// What ends its lines.
    pub(super) newline: &'static str,
    /// What a level is indented by.
    pub(super) indent: String,
    /// It is all on one line, and what is put into it, too.
    pub(super) is_one_line: bool,
}

impl Layout {
    pub(super) fn of(document: &ConfigDocument<'_>, text: &str) -> Self {
        let bare = text.trim_start_matches('\u{feff}');
        let first = document.root().and_then(|root| root.properties.first());
        let indent = first.map(|first| indentation(bare, first.start())).unwrap_or_default();
        Self {
            newline: if text.contains("\r\n") { "\r\n" } else { "\n" },
            indent: if indent.is_empty() { INDENT } else { indent }.to_owned(),
            is_one_line: first.is_some() && !text.trim().contains('\n'),
        }
    }

    /// The text of a value that stands in a line with this indentation.
    pub(super) fn write(&self, value: &WrittenValue, base: &str) -> String {
        match value {
            WrittenValue::Members(members) if members.is_empty() => "{}".to_owned(),
            WrittenValue::Members(members) => {
                let inner = format!("{base}{}", self.indent);
                let members = members.iter().map(|(key, value)| {
                    format!("{}: {}", Value::from(key.as_str()), self.write(value, &inner))
                });
                self.enclose(['{', '}'], members.collect(), base)
            }
            WrittenValue::Value(Value::Object(members)) => {
                let member = |(key, value): (&String, &Value)| (key.clone(), value.clone().into());
                self.write(&WrittenValue::Members(members.iter().map(member).collect()), base)
            }
            WrittenValue::Value(Value::Array(elements)) => {
                let inner = format!("{base}{}", self.indent);
                let texts = elements.iter().map(|it| self.write(&it.clone().into(), &inner));
                let texts: Vec<_> = texts.collect();
                let plain = elements.iter().all(|it| !it.is_object() && !it.is_array());
                let line = format!("[{}]", texts.join(", "));
                match plain && line.chars().count() <= SHORT_LIST {
                    true => line,
                    false => self.enclose(['[', ']'], texts, base),
                }
            }
            WrittenValue::Value(scalar) => scalar.to_string(),
        }
    }

    fn enclose(&self, [open, close]: [char; 2], parts: Vec<String>, base: &str) -> String {
        let Self { newline, indent, is_one_line } = self;
        match is_one_line {
            true => format!("{open}{}{close}", parts.join(", ")),
            false => {
                let parts = parts.join(&format!(",{newline}{base}{indent}"));
                format!("{open}{newline}{base}{indent}{parts}{newline}{base}{close}")
            }
        }
    }
}

/// A member with its name, as it is shown to people.
#[must_use]
pub fn rendered(name: &str, members: &[(String, Value)]) -> String {
    let layout = Layout { newline: "\n", indent: INDENT.to_owned(), is_one_line: false };
    let members = members.iter().map(|(key, value)| (key.clone(), value.clone().into()));
    let written = layout.write(&WrittenValue::Members(members.collect()), "");
    format!("{}: {written}", Value::from(name))
}

/// The white space that the line of `at` begins with.
pub(super) fn indentation(text: &str, at: usize) -> &str {
    let before = text.get(..at).unwrap_or_default();
    let line = before.rfind('\n').map_or(0, |end| end + 1);
    let line = before.get(line..).unwrap_or_default();
    line.get(..line.len() - line.trim_start().len()).unwrap_or_default()
}
