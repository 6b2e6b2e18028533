//! Opening exchange of a client with a server: `initialize` of the legacy revisions, `server/discover` of the modern one.
//!
//! Reads the members that the proxy needs and tolerates the rest: real servers omit `serverInfo.version`, declare capabilities as `true` or
//! `[]`, and write `ttlMs` as `60000.0`. Each deviation in a member that is read is reported by name, so that an operator sees it. Pure.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::capabilities::{ClientCapabilities, ServerCapabilities};
use super::jsonrpc::{self, Code};
use super::known_extensions::Extensions;
use super::meta::{CLIENT_KEY, EVERYTHING, OURS, SERVER_KEY};
use super::revisions::{LEGACY, MODERN};

/// Notification that ends the handshake of a legacy revision.
pub const INITIALIZED: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
/// Maximum size of a server's `instructions` in bytes; longer instructions are omitted.
pub const MAX_INSTRUCTIONS_BYTES: usize = 64 * 1024;
/// Maximum size in bytes of a server's declared capabilities that are shown to clients; larger ones are omitted.
pub const MAX_CAPABILITIES_BYTES: usize = 64 * 1024;
/// Maximum number of deviations that are reported.
const MAX_DEVIATIONS: usize = 8;

/// Request of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpeningRequest {
    /// `initialize`, which proposes this revision.
    Initialize(&'static str),
    /// `server/discover`
    Discover,
}

impl OpeningRequest {
    pub const fn method(self) -> &'static str {
        match self {
            Self::Initialize(_) => "initialize",
            Self::Discover => "server/discover",
        }
    }

    /// The message, on one line. Declares all client capabilities, since servers hide tools from clients that lack some;
    /// requests that the client behind a call does not support are refused individually.
    pub fn message(self, id: u64) -> Vec<u8> {
        let everything = String::from_utf8_lossy(EVERYTHING);
        // The object is not empty: its members follow the preceding ones.
        let members = everything.strip_prefix('{').unwrap_or_default();
        let params = match self {
            Self::Discover => format!(r#"{{"_meta":{{{OURS},{members}}}"#),
            Self::Initialize(version) => {
                // The same members, at the positions that the legacy revisions use.
                let (client, mut capabilities) = (client_info(), Vec::new());
                let all =
                    ClientCapabilities { extensions: Extensions::ALL, ..ClientCapabilities::ALL };
                all.push(&mut capabilities);
                let capabilities = String::from_utf8_lossy(&capabilities);
                format!(
                    r#"{{"protocolVersion":"{version}","capabilities":{capabilities},"clientInfo":{client}}}"#
                )
            }
        };
        let method = self.method();
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
            .into_bytes()
    }
}

/// `{"name":…,"version":…}` of the proxy.
fn client_info() -> String {
    let ours: Map<String, Value> = serde_json::from_str(&format!("{{{OURS}}}")).unwrap_or_default();
    ours.get(CLIENT_KEY).cloned().unwrap_or_default().to_string()
}

/// Response of a server, as slices of the message.
#[derive(Debug)]
pub struct ServerResponse<'a> {
    id: Option<&'a RawValue>,
    pub outcome: Result<&'a RawValue, RpcError>,
}

/// Error of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RpcError {
    /// Error code; 0 if absent.
    pub code: i64,
    pub message: String,
    /// Revisions of `data.supported`, if it is a list.
    pub supported: Option<Vec<String>>,
}

impl<'a> ServerResponse<'a> {
    /// Parses a message; `None` if it is not a response. `null` counts as absent.
    pub fn parse(message: &'a [u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Members<'a> {
            #[serde(borrow)]
            id: Option<&'a RawValue>,
            method: Option<IgnoredAny>,
            #[serde(borrow)]
            result: Option<&'a RawValue>,
            #[serde(borrow)]
            error: Option<&'a RawValue>,
        }
        let Members { id, method, result, error } = serde_json::from_slice(message).ok()?;
        if method.is_some() {
            return None;
        }
        let outcome = match (error, result) {
            (Some(error), _) => Err(RpcError::parse(error.get())),
            (None, Some(result)) => Ok(result),
            (None, None) => return None,
        };
        Some(Self { id, outcome })
    }

    pub fn is_without_id(&self) -> bool {
        self.id.is_none()
    }

    /// Whether this response answers the request with this id, which may be written as a string or with a fraction of
    /// zero. A response without an id, or an error whose id is not a number, counts as the answer to the request that
    /// is awaited.
    pub fn answers(&self, id: u64) -> bool {
        match self.id {
            None => true,
            Some(raw) => match jsonrpc::numeric_id(raw.get().as_bytes()) {
                Some(found) => found == id,
                None => self.outcome.is_err(),
            },
        }
    }
}

impl RpcError {
    fn parse(raw: &str) -> Self {
        let error = match serde_json::from_str(raw) {
            Ok(Value::Object(error)) => error,
            Ok(Value::String(message)) => return Self { message, ..Self::default() },
            Ok(_) | Err(_) => return Self { message: raw.to_owned(), ..Self::default() },
        };
        let code = error.get("code").and_then(integer).unwrap_or_default();
        let message = error.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
        let supported = error.get("data").and_then(|data| data.get("supported"));
        let supported = supported.and_then(Value::as_array).map(|list| strings(list));
        Self { code, message, supported }
    }

    /// Whether only servers of the modern revision send this error.
    pub fn is_modern(&self) -> bool {
        let unsupported = self.code == Code::UnsupportedVersion as i64;
        let codes = [Code::HeaderMismatch as i64, Code::MissingCapability as i64];
        codes.contains(&self.code) || (unsupported && !self.names_legacy_only())
    }

    /// Whether the error names revisions that the proxy knows, but not the modern one.
    fn names_legacy_only(&self) -> bool {
        self.supported.as_deref().is_some_and(legacy_only)
    }
}

/// Whether repeating the request would yield the same error.
pub fn is_lasting(code: i64) -> bool {
    let lasting = [
        Code::MethodNotFound,
        Code::InvalidParams,
        Code::InvalidRequest,
        Code::HeaderMismatch,
        Code::MissingCapability,
        Code::UnsupportedVersion,
    ];
    lasting.iter().any(|known| *known as i64 == code)
}

/// Integer value of a number, in any spelling.
fn integer(value: &Value) -> Option<i64> {
    const SAFE: f64 = 9_007_199_254_740_991.0;
    value.as_i64().or_else(|| {
        let number = value.as_f64().filter(|it| it.fract() == 0.0 && it.abs() <= SAFE)?;
        // The conversion is exact within this range.
        #[expect(clippy::cast_possible_truncation)]
        Some(number as i64)
    })
}

fn strings(list: &[Value]) -> Vec<String> {
    list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Whether known legacy revisions are among `versions`, and the modern one is not.
fn legacy_only(versions: &[String]) -> bool {
    !versions.iter().any(|version| version == MODERN) && has_legacy(versions)
}

fn has_legacy(versions: &[String]) -> bool {
    versions.iter().any(|version| LEGACY.contains(&version.as_str()))
}

/// Revision to propose after `initialize` with the revision `proposed` was refused: the newest older revision that both sides know; `None`
/// if the refusal is not about the revision.
pub fn older_revision(proposed: &str, error: &RpcError) -> Option<&'static str> {
    let older = || LEGACY.into_iter().skip_while(|known| *known != proposed).skip(1);
    if let Some(supported) = &error.supported {
        let has = |known: &&str| supported.iter().any(|version| version == known);
        return older().find(has).filter(|_| !has(&proposed));
    }
    let codes = [
        0,
        Code::InvalidParams as i64,
        Code::UnsupportedVersion as i64,
        Code::Throttled as i64,
        Code::InvalidRequest as i64,
    ];
    let text = error.message.to_ascii_lowercase();
    let about_version =
        text.contains("version") && (text.contains("protocol") || text.contains("unsupported"));
    if !about_version || !codes.contains(&error.code) {
        return None;
    }
    // Some servers name the supported revisions only in the text, others not at all.
    older().find(|known| text.contains(known)).or_else(|| older().next())
}

/// The newest legacy revision that is older than `proposed`.
pub fn next_older(proposed: &str) -> Option<&'static str> {
    LEGACY.into_iter().skip_while(|known| *known != proposed).nth(1)
}

/// Self-description of a server in the opening exchange.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Introduction {
    /// Revision of the connection, as the server wrote it.
    pub revision: String,
    /// Name and version of the implementation, as far as the server states them.
    pub server: Option<String>,
    pub capabilities: ServerCapabilities,
    /// Members of the server's capabilities, at most [`MAX_CAPABILITIES_BYTES`].
    pub declared: Map<String, Value>,
    /// Instructions of the server, at most [`MAX_INSTRUCTIONS_BYTES`].
    pub instructions: Option<String>,
    /// Whether the answer to `server/discover` lists a legacy revision, too.
    pub lists_legacy: bool,
    /// Deviations from the protocol that were tolerated, at most [`MAX_DEVIATIONS`].
    pub deviations: Vec<String>,
}

/// Result of `server/discover`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiscoverAnswer {
    Modern(Introduction),
    /// The server lists known legacy revisions, but not the modern one.
    LegacyOnly,
    /// The server lists only these revisions, none of which is known.
    Unknown(Vec<String>),
}

impl Introduction {
    /// Reads a result of `initialize`. The error names the member that is missing or wrong.
    pub fn of_initialize(result: &str) -> Result<Self, String> {
        let result = object(result)?;
        let revision = match result.get("protocolVersion") {
            Some(Value::String(revision)) if !revision.is_empty() => revision.clone(),
            Some(Value::Null) | None => return Err("missing protocolVersion".to_owned()),
            Some(_) => return Err("protocolVersion is not a string".to_owned()),
        };
        let mut introduction = Self { revision, ..Self::default() };
        introduction.read_server("serverInfo", result.get("serverInfo"));
        introduction.read_capabilities(result.get("capabilities"));
        introduction.read_instructions(result.get("instructions"));
        Ok(introduction)
    }

    fn read_server(&mut self, member: &str, info: Option<&Value>) {
        let mut words = Vec::new();
        match info {
            Some(Value::Object(info)) => {
                for key in ["name", "version"] {
                    match info.get(key) {
                        Some(Value::String(word)) => words.push(word.as_str()),
                        Some(Value::Null) | None => {
                            self.deviates(format!("missing {member}.{key}"))
                        }
                        Some(_) => self.deviates(format!("{member}.{key} is not a string")),
                    }
                }
            }
            Some(Value::Null) | None => self.deviates(format!("missing {member}")),
            Some(_) => self.deviates(format!("{member} is not an object")),
        }
        self.server = (!words.is_empty()).then(|| words.join(" "));
    }

    /// Reads capabilities. Any value except `null` and `false` declares one.
    fn read_capabilities(&mut self, declared: Option<&Value>) {
        let empty = Map::new();
        let declared = match declared {
            Some(Value::Object(declared)) => declared,
            Some(Value::Null) | None => {
                self.deviates("missing capabilities".to_owned());
                &empty
            }
            Some(_) => {
                self.deviates("capabilities is not an object".to_owned());
                &empty
            }
        };
        let mut has = |name: &str| match declared.get(name) {
            Some(Value::Object(_)) => true,
            Some(Value::Null) | None => false,
            Some(other) => {
                self.deviates(format!("capabilities.{name} is not an object"));
                *other != Value::Bool(false)
            }
        };
        self.capabilities = ServerCapabilities {
            tools: has("tools"),
            resources: has("resources"),
            resource_updates: declared
                .get("resources")
                .and_then(|it| it.get("subscribe"))
                .is_some_and(|it| *it == Value::Bool(true)),
            prompts: has("prompts"),
            completions: has("completions"),
            logging: has("logging"),
        };
        match Value::from(declared.clone()).to_string().len() {
            0..=MAX_CAPABILITIES_BYTES => self.declared = declared.clone(),
            _ => self
                .deviates(format!("capabilities are larger than {MAX_CAPABILITIES_BYTES} bytes")),
        }
    }

    fn read_instructions(&mut self, instructions: Option<&Value>) {
        match instructions {
            Some(Value::String(text)) if text.len() <= MAX_INSTRUCTIONS_BYTES => {
                self.instructions = Some(text.clone()).filter(|text| !text.is_empty());
            }
            Some(Value::String(_)) => {
                self.deviates(format!(
                    "instructions are longer than {MAX_INSTRUCTIONS_BYTES} bytes"
                ));
            }
            Some(Value::Null) | None => {}
            Some(_) => self.deviates("instructions is not a string".to_owned()),
        }
    }

    fn deviates(&mut self, how: String) {
        if self.deviations.len() < MAX_DEVIATIONS {
            self.deviations.push(how);
        }
    }
}

impl DiscoverAnswer {
    /// Reads a result of `server/discover`. The error names the member that is missing or wrong.
    pub fn parse(result: &str) -> Result<Self, String> {
        let result = object(result)?;
        let supported = match result.get("supportedVersions") {
            Some(Value::Array(list)) => strings(list),
            Some(Value::Null) | None => return Err("missing supportedVersions".to_owned()),
            Some(_) => return Err("supportedVersions is not a list".to_owned()),
        };
        if legacy_only(&supported) {
            return Ok(Self::LegacyOnly);
        }
        if !supported.iter().any(|version| version == MODERN) {
            return Ok(Self::Unknown(supported));
        }
        let mut introduction = Introduction {
            revision: MODERN.to_owned(),
            lists_legacy: has_legacy(&supported),
            ..Introduction::default()
        };
        // The member is optional in this revision.
        let info = result.get("_meta").and_then(|meta| meta.get(SERVER_KEY));
        if let Some(info) = info.or_else(|| result.get("serverInfo")) {
            introduction.read_server("serverInfo", Some(info));
        }
        introduction.read_capabilities(result.get("capabilities"));
        introduction.read_instructions(result.get("instructions"));
        Ok(Self::Modern(introduction))
    }
}

fn object(result: &str) -> Result<Map<String, Value>, String> {
    match serde_json::from_str(result) {
        Ok(Value::Object(members)) => Ok(members),
        Ok(_) => Err("the result is not an object".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::mcp::revisions::NEWEST_LEGACY;

    #[test]
    fn opening_messages_have_the_members_of_their_revision() {
        let message = |opening: OpeningRequest| -> Value {
            serde_json::from_slice(&opening.message(7)).unwrap()
        };
        let capabilities = json!({"sampling": {}, "elicitation": {"form": {}, "url": {}}, "roots": {},
            "extensions": {
                "io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]},
                "io.modelcontextprotocol/skills": {}}});
        let client = json!({"name": "mcpproxy", "version": env!("CARGO_PKG_VERSION")});
        assert_eq!(
            message(OpeningRequest::Initialize("2025-11-25")),
            json!({"jsonrpc": "2.0", "id": 7, "method": "initialize", "params": {
                "protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": client}})
        );
        let mut modern = capabilities;
        modern["extensions"]["io.modelcontextprotocol/tasks"] = json!({});
        assert_eq!(
            message(OpeningRequest::Discover),
            json!({"jsonrpc": "2.0", "id": 7, "method": "server/discover", "params": {"_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientInfo": client,
                "io.modelcontextprotocol/clientCapabilities": modern}}})
        );
    }

    #[test]
    fn response_is_matched_by_id_in_any_spelling() {
        for (message, answers) in [
            (r#"{"id":7,"result":{}}"#, Some(true)),
            (r#"{"id":7.0,"result":{}}"#, Some(true)),
            (r#"{"id":"7","result":{},"error":null}"#, Some(true)),
            (r#"{"id":8,"result":{}}"#, Some(false)),
            (r#"{"result":{}}"#, Some(true)),
            (r#"{"id":null,"error":{"code":-32000,"message":"no"}}"#, Some(true)),
            (r#"{"error":"boom"}"#, Some(true)),
            (r#"{"id":"server-error","error":{}}"#, Some(true)),
            (r#"{"id":"other","result":{}}"#, Some(false)),
            (r#"{"id":7,"method":"ping"}"#, None),
            (r#"{"id":7,"result":null}"#, None),
            ("[]", None),
            ("{", None),
        ] {
            let response = ServerResponse::parse(message.as_bytes());
            assert_eq!(response.map(|it| it.answers(7)), answers, "{message}");
        }
    }

    #[test]
    fn error_is_parsed_in_any_form() {
        for (raw, code, message, supported) in [
            (
                r#"{"code":-32602,"message":"m","data":{"supported":["a",7,"b"]}}"#,
                -32602,
                "m",
                Some(vec!["a", "b"]),
            ),
            (r#"{"code":-32602.0,"message":7,"data":"x"}"#, -32602, "", None),
            (r#""boom""#, 0, "boom", None),
            ("7", 0, "7", None),
        ] {
            let supported = supported.map(|list| list.into_iter().map(str::to_owned).collect());
            let expected = RpcError { code, message: message.to_owned(), supported };
            assert_eq!(RpcError::parse(raw), expected, "{raw}");
        }
    }

    #[test]
    fn pro_15_version_refusal_leads_to_the_newest_common_older_revision() {
        let supported = |code: i64, list: &[&str]| RpcError {
            code,
            message: "Unsupported protocol version".to_owned(),
            supported: Some(list.iter().map(|it| (*it).to_owned()).collect()),
        };
        let text = |code: i64, message: &str| RpcError {
            code,
            message: message.to_owned(),
            supported: None,
        };
        for (error, expected) in [
            (supported(-32602, &["2024-11-05"]), Some("2024-11-05")),
            (supported(-32022, &["2025-03-26", "2025-06-18", "2026-07-28"]), Some("2025-06-18")),
            (supported(-32602, &["2026-07-28"]), None),
            (supported(-32602, &["2025-11-25", "2025-06-18"]), None),
            (
                text(
                    0,
                    "Bad Request: Unsupported protocol version (supported versions: 2025-03-26, 2024-11-05)",
                ),
                Some("2025-03-26"),
            ),
            (text(-32000, "Unsupported protocol version: 2025-11-25"), Some("2025-06-18")),
            (text(-32603, "Unsupported protocol version: 2025-11-25"), None),
            (text(0, "what?"), None),
            (text(0, "this server needs version 3 of our client"), None),
        ] {
            assert_eq!(older_revision(NEWEST_LEGACY, &error), expected, "{error:?}");
        }
        assert_eq!(older_revision("2024-11-05", &text(0, "protocol version?")), None);
    }

    #[test]
    fn pro_15_irregular_handshake_result_is_accepted_and_each_deviation_is_named() {
        let tools = ServerCapabilities { tools: true, ..ServerCapabilities::default() };
        let none = ServerCapabilities::default();
        for (result, server, capabilities, deviations) in [
            (
                json!({"protocolVersion": "v", "serverInfo": {"name": "n", "version": "1"}, "capabilities": {"tools": {}}}),
                Some("n 1"),
                tools,
                &[][..],
            ),
            (
                json!({"protocolVersion": "v", "serverInfo": {"name": "n"}, "capabilities": {"tools": true, "prompts": false, "logging": null, "experimental": {"a": null}}}),
                Some("n"),
                tools,
                &[
                    "missing serverInfo.version",
                    "capabilities.tools is not an object",
                    "capabilities.prompts is not an object",
                ],
            ),
            (
                json!({"protocolVersion": "v", "serverInfo": null, "capabilities": []}),
                None,
                none,
                &["missing serverInfo", "capabilities is not an object"],
            ),
            (
                json!({"protocolVersion": "v", "serverInfo": {"name": 7, "version": "1"}, "capabilities": {"tools": []}}),
                Some("1"),
                tools,
                &["serverInfo.name is not a string", "capabilities.tools is not an object"],
            ),
        ] {
            let introduction = Introduction::of_initialize(&result.to_string()).unwrap();
            assert_eq!(introduction.server.as_deref(), server, "{result}");
            assert_eq!(introduction.capabilities, capabilities, "{result}");
            assert_eq!(introduction.deviations, deviations, "{result}");
        }
        for (result, reason) in [
            (json!({}), "missing protocolVersion"),
            (json!({"protocolVersion": 2}), "protocolVersion is not a string"),
            (json!([]), "the result is not an object"),
        ] {
            assert_eq!(Introduction::of_initialize(&result.to_string()).unwrap_err(), reason);
        }
    }

    #[test]
    fn discovery_decides_the_protocol_family_by_the_listed_revisions() {
        let parse = |result: Value| DiscoverAnswer::parse(&result.to_string());
        let modern = json!({"supportedVersions": ["2025-11-25", "2026-07-28"], "ttlMs": 60000.0,
            "capabilities": {"resources": {"subscribe": true}},
            "_meta": {SERVER_KEY: {"name": "n", "version": "2"}}});
        let Ok(DiscoverAnswer::Modern(it)) = parse(modern) else { panic!() };
        assert_eq!((it.revision.as_str(), it.server.as_deref()), ("2026-07-28", Some("n 2")));
        assert!(it.capabilities.resources && it.capabilities.resource_updates);
        assert_eq!(it.deviations, [""; 0]);
        assert_eq!(
            parse(json!({"supportedVersions": ["2025-11-25"]})),
            Ok(DiscoverAnswer::LegacyOnly)
        );
        let unknown = DiscoverAnswer::Unknown(vec!["2099-01-01".to_owned()]);
        assert_eq!(parse(json!({"supportedVersions": ["2099-01-01"]})), Ok(unknown));
        assert_eq!(parse(json!({"hello": 1})).unwrap_err(), "missing supportedVersions");
        assert_eq!(
            parse(json!({"supportedVersions": 1})).unwrap_err(),
            "supportedVersions is not a list"
        );
    }

    #[test]
    fn only_errors_defined_by_the_modern_revision_count_as_modern() {
        let error = |code, supported: Option<&[&str]>| RpcError {
            code,
            message: String::new(),
            supported: supported.map(|list| list.iter().map(|it| (*it).to_owned()).collect()),
        };
        for (error, modern) in [
            (error(-32601, None), false),
            (error(-32602, None), false),
            (error(-32020, None), true),
            (error(-32021, None), true),
            (error(-32022, None), true),
            (error(-32022, Some(&["2099-01-01"])), true),
            (error(-32022, Some(&["2025-11-25"])), false),
        ] {
            assert_eq!(error.is_modern(), modern, "{error:?}");
        }
    }
}
