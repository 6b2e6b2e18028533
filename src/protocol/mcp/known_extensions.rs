//! Extensions of the protocol that the proxy serves between any client and any server, and the single form in which
//! each is declared to servers and to clients. Pure.
//!
//! [`KNOWN`] is the only list of them. A client's own settings are never forwarded: they are read as "supported" or "not
//! supported", and a server gets the fixed text of the table, so that nothing chosen by the client passes unseen.

use mcpproxy_json::members::{elements, member, members, string};
use serde_json::{Map, Value};

/// The extension for tasks, which is declared for calls whose client and server have declared it (PRO-43).
pub const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// A known extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extension {
    /// MCP Apps (SEP-1865): tools with pages.
    Ui,
    /// Skills (SEP-2640).
    Skills,
}

/// Row of the table.
struct Known {
    extension: Extension,
    id: &'static str,
    /// Settings of a client, as declared to servers.
    settings: &'static str,
    /// Whether a client's settings, a JSON object, declare the support that `settings` expresses.
    is_supported: fn(&str) -> bool,
    /// Boolean settings of servers: declared to clients if one server declares them.
    flags: &'static [&'static str],
}

const KNOWN: [Known; 2] = [
    Known {
        extension: Extension::Ui,
        id: "io.modelcontextprotocol/ui",
        settings: r#"{"mimeTypes":["text/html;profile=mcp-app"]}"#,
        is_supported: shows_apps,
        flags: &[],
    },
    Known {
        extension: Extension::Skills,
        id: "io.modelcontextprotocol/skills",
        settings: "{}",
        is_supported: |_| true,
        flags: &["directoryRead"],
    },
];

/// The content type of apps, the only one so far.
const APP_TYPE: &str = "text/html;profile=mcp-app";
/// Maximum number of content types of a client that are examined.
const MAX_MIME_TYPES: usize = 64;

/// Whether `mimeTypes`, which the specification requires, has the content type of apps.
fn shows_apps(settings: &str) -> bool {
    let types = member(settings, "mimeTypes").and_then(|types| elements(types).ok());
    let mut types = types.into_iter().flatten().take(MAX_MIME_TYPES).map_while(Result::ok);
    types.any(|each| string(each).is_some_and(|each| each == APP_TYPE))
}

/// Set of known extensions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions(u8);

impl Extensions {
    pub const NONE: Self = Self(0);
    pub const ALL: Self = Self((1 << KNOWN.len()) - 1);

    pub const fn has(self, extension: Extension) -> bool {
        self.0 & Self::bit(extension) != 0
    }

    #[must_use]
    pub const fn with(self, extension: Extension) -> Self {
        Self(self.0 | Self::bit(extension))
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    const fn bit(extension: Extension) -> u8 {
        1 << extension as u8
    }

    /// The set as a byte. The order of [`Extension`] must never change.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The set of a byte; unknown bits are ignored.
    pub const fn of_bits(bits: u8) -> Self {
        Self(bits & Self::ALL.0)
    }

    /// Extensions declared by `extensions`, a member of a client's capabilities as raw JSON.
    pub fn declared(extensions: &str) -> Self {
        let declared = members(extensions).ok().into_iter().flatten().map_while(Result::ok);
        declared.fold(Self::NONE, |all, (id, settings)| {
            let known = KNOWN.iter().find(|known| known.id == &*id);
            let supported =
                known.filter(|it| settings.starts_with('{') && (it.is_supported)(settings));
            supported.map_or(all, |it| all.with(it.extension))
        })
    }

    /// Writes the member `"extensions":{…}` of a client's capabilities; nothing for an empty set.
    pub fn push(self, out: &mut Vec<u8>) {
        self.push_with(false, out);
    }

    /// Same as [`push`](Self::push), plus the extension for tasks if `tasks` is true.
    pub(super) fn push_with(self, tasks: bool, out: &mut Vec<u8>) {
        let declared = KNOWN.iter().filter(|known| self.has(known.extension));
        let declared = declared.map(|known| (known.id, known.settings));
        let declared = declared.chain(tasks.then_some((TASKS_EXTENSION, "{}")));
        for (at, (id, settings)) in declared.enumerate() {
            let before = if at == 0 { r#""extensions":{"# } else { "," };
            for part in [before, "\"", id, "\":", settings] {
                out.extend_from_slice(part.as_bytes());
            }
        }
        if tasks || !self.is_empty() {
            out.push(b'}');
        }
    }
}

/// Known extensions of several servers, as declared to a client.
#[derive(Debug, Default)]
pub struct MergedExtensions(Map<String, Value>);

impl MergedExtensions {
    /// Adds the known extensions in a server's capabilities. Other extensions, and values that are not objects, are
    /// ignored.
    pub fn add(&mut self, capabilities: &Map<String, Value>) {
        let Some(Value::Object(declared)) = capabilities.get("extensions") else { return };
        for Known { id, flags, .. } in &KNOWN {
            let Some(Value::Object(settings)) = declared.get(*id) else { continue };
            let merged = self.0.entry(*id).or_insert_with(|| Value::Object(Map::new()));
            let set = flags.iter().filter(|flag| settings.get(**flag) == Some(&Value::Bool(true)));
            if let Value::Object(merged) = merged {
                merged.extend(set.map(|flag| ((*flag).to_owned(), Value::Bool(true))));
            }
        }
    }

    /// Adds all known extensions, without flags.
    pub fn add_all(&mut self) {
        for Known { id, .. } in &KNOWN {
            self.0.entry(*id).or_insert_with(|| Value::Object(Map::new()));
        }
    }

    /// Whether a server's capabilities declare this extension.
    pub fn has(capabilities: &Map<String, Value>, extension: Extension) -> bool {
        let declared = capabilities.get("extensions");
        let id = KNOWN.iter().find(|known| known.extension == extension).map(|known| known.id);
        id.and_then(|id| declared?.get(id)).is_some_and(Value::is_object)
    }

    /// Whether a server's capabilities declare a known extension.
    pub fn has_any(capabilities: &Map<String, Value>) -> bool {
        KNOWN.iter().any(|known| Self::has(capabilities, known.extension))
    }

    /// The member `extensions`; `None` if empty.
    pub fn into_value(self) -> Option<Value> {
        (!self.0.is_empty()).then_some(Value::Object(self.0))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const BOTH: &str = concat!(
        r#""extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]},"#,
        r#""io.modelcontextprotocol/skills":{}}"#
    );

    fn pushed(extensions: Extensions) -> String {
        let mut out = Vec::new();
        extensions.push(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn pro_44_settings_of_a_client_are_read_and_never_forwarded() {
        let (ui, skills) =
            (Extensions::NONE.with(Extension::Ui), Extensions::NONE.with(Extension::Skills));
        for (declared, expected) in [
            ("{}", Extensions::NONE),
            ("7", Extensions::NONE),
            (r#"{"x.example/a":{"secret":1}}"#, Extensions::NONE),
            (r#"{"io.modelcontextprotocol/skills":{"data":"x"}}"#, skills),
            (r#"{"io.modelcontextprotocol/skills":null}"#, Extensions::NONE),
            (r#"{"io.modelcontextprotocol/skills":7}"#, Extensions::NONE),
            (r#"{"io.modelcontextprotocol/ui":{}}"#, Extensions::NONE),
            (r#"{"io.modelcontextprotocol/ui":{"mimeTypes":7}}"#, Extensions::NONE),
            (r#"{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html"]}}"#, Extensions::NONE),
            (
                r#"{"io.modelcontextprotocol/ui" : {"x":1, "mimeTypes":["a", "text\/html;profile=mcp-app", 7]}}"#,
                ui,
            ),
            (
                r#"{"io.modelcontextprotocol/skills":{},"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}}"#,
                Extensions::ALL,
            ),
        ] {
            assert_eq!(Extensions::declared(declared), expected, "{declared}");
        }
        let many = vec!["x"; MAX_MIME_TYPES];
        let late = json!({"io.modelcontextprotocol/ui":
            {"mimeTypes": many.iter().chain(&[APP_TYPE]).collect::<Vec<_>>()}});
        assert_eq!(Extensions::declared(&late.to_string()), Extensions::NONE);
    }

    #[test]
    fn pro_44_extension_set_is_written_in_one_form() {
        assert_eq!(pushed(Extensions::NONE), "");
        assert_eq!(pushed(Extensions::ALL), BOTH);
        for bits in 0..=u8::MAX {
            let set = Extensions::of_bits(bits);
            assert_eq!(set.bits(), bits & Extensions::ALL.bits());
            let text = format!("{{{}}}", pushed(set));
            let value: Value = serde_json::from_str(&text).unwrap();
            let again = value.get("extensions").map(Value::to_string).unwrap_or_default();
            assert_eq!(Extensions::declared(&again), set, "{text}");
        }
        let rows = KNOWN.iter().map(|known| known.extension as usize);
        assert!(rows.eq(0..KNOWN.len()), "the order of the table is that of the bits");
    }

    #[test]
    fn pro_44_servers_extensions_are_merged_in_a_fixed_form() {
        let mut merged = MergedExtensions::default();
        for capabilities in [
            json!({"tools": {}}),
            json!({"extensions": 7}),
            json!({"extensions": {"io.modelcontextprotocol/ui": null, "x.example/a": {}}}),
            json!({"extensions": {"io.modelcontextprotocol/skills": {"directoryRead": 7, "x": 1}}}),
        ] {
            merged.add(capabilities.as_object().unwrap());
        }
        assert_eq!(json!(merged.0), json!({"io.modelcontextprotocol/skills": {}}));
        let mut all = MergedExtensions::default();
        all.add_all();
        assert_eq!(
            json!(all.0),
            json!({"io.modelcontextprotocol/ui": {}, "io.modelcontextprotocol/skills": {}})
        );
        let last = json!({"extensions": {"io.modelcontextprotocol/ui": {"x": 1},
            "io.modelcontextprotocol/skills": {"directoryRead": true}}});
        let last = last.as_object().unwrap();
        merged.add(last);
        assert_eq!(
            merged.into_value(),
            Some(json!({"io.modelcontextprotocol/ui": {},
                "io.modelcontextprotocol/skills": {"directoryRead": true}}))
        );
        assert!(MergedExtensions::has(last, Extension::Skills) && MergedExtensions::has_any(last));
        assert_eq!(MergedExtensions::default().into_value(), None);
    }
}
