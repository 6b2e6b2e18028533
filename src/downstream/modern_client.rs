//! Who sends a request of the stateless revision (MCP 2026-07-28): what its `_meta` must say, and whether its headers
//! repeat it.
//!
//! Nothing is remembered that a request does not say again: [`KnownClient`] only spares reading the same twice.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::json::members::string;
use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::headers::{self, Form, HeaderMismatch, METHOD, NAME};
use crate::mcp::jsonrpc::{self, Code};
use crate::mcp::message::Request;
use crate::mcp::meta::{CAPABILITIES_KEY, VERSION_KEY};
use crate::mcp::revisions::{Era, MODERN};
use crate::proxy::Worker;
use crate::proxy::client::{Client, Level};
use crate::proxy::dispatch::{ClientInfo, supported};
use crate::proxy::render;

/// Most bytes of a client's description of itself that are remembered.
const MAX_KNOWN_BYTES: usize = 4096;

/// The last client on a connection, and the members of `_meta` that described it.
#[derive(Debug)]
pub(super) struct KnownClient {
    said: Box<str>,
    client: Arc<Client>,
}

/// Why a request is refused for its sender or its headers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ClientRefused {
    /// A member of `_meta` is missing or malformed.
    #[error("Invalid params: {0}")]
    Meta(String),
    /// Headers and body do not agree.
    #[error("Header mismatch: {0}")]
    Headers(#[from] HeaderMismatch),
    /// Its revision is not served without a session.
    #[error("Unsupported protocol version")]
    Version(String),
}

impl ClientRefused {
    /// The whole error response.
    pub(super) fn answer(&self, worker: &Worker, id: Option<&[u8]>) -> Bytes {
        let text = self.to_string();
        match self {
            Self::Meta(_) => jsonrpc::error(id, Code::InvalidParams, &text),
            Self::Headers(_) => jsonrpc::error(id, Code::HeaderMismatch, &text),
            Self::Version(requested) => {
                let requested = render::shown(requested);
                let data = json!({"supported": supported(worker), "requested": requested});
                jsonrpc::error_with(id, Code::UnsupportedVersion, &text, &data)
            }
        }
    }
}

/// What params say of their sender, and the members that `Mcp-Name` repeats.
#[derive(Debug, Default, Deserialize)]
pub(super) struct RequestParams<'a> {
    #[serde(borrow, default, rename = "_meta")]
    meta: Meta<'a>,
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    uri: Option<&'a RawValue>,
    #[serde(borrow, rename = "taskId")]
    task_id: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
struct Meta<'a> {
    #[serde(borrow, rename = "io.modelcontextprotocol/protocolVersion")]
    version: Option<&'a RawValue>,
    #[serde(borrow, rename = "io.modelcontextprotocol/clientCapabilities")]
    capabilities: Option<&'a RawValue>,
    #[serde(borrow, rename = "io.modelcontextprotocol/clientInfo")]
    info: Option<&'a RawValue>,
    #[serde(borrow, rename = "io.modelcontextprotocol/logLevel")]
    level: Option<&'a RawValue>,
}

fn text<'a>(raw: &'a RawValue) -> Option<Cow<'a, str>> {
    string(raw.get())
}

impl<'a> RequestParams<'a> {
    /// Reads the params of a request, as far as they are about its sender and its headers.
    pub(super) fn read(request: &'a Request) -> Result<Self, ClientRefused> {
        match &request.params {
            None => Ok(Self::default()),
            Some(raw) => serde_json::from_slice(raw)
                .map_err(|problem| ClientRefused::Meta(problem.to_string())),
        }
    }

    /// The revision that the request names.
    pub(super) fn version(&self) -> Result<Cow<'a, str>, ClientRefused> {
        self.meta.version.and_then(text).ok_or_else(|| missing(VERSION_KEY))
    }

    /// The client that `_meta` describes.
    fn client(&self) -> Result<Client, ClientRefused> {
        let version = self.version()?;
        if version != MODERN {
            return Err(ClientRefused::Version(version.into_owned()));
        }
        let declared = self.meta.capabilities.and_then(|raw| {
            serde_json::from_str::<ClientCapabilities>(raw.get())
                .ok()
                .filter(|_| raw.get().starts_with('{'))
        });
        let client_capabilities = declared.ok_or_else(|| missing(CAPABILITIES_KEY))?;
        let info =
            self.meta.info.and_then(|raw| serde_json::from_str::<ClientInfo>(raw.get()).ok());
        let name = info.map(|info| info.name).unwrap_or_default();
        let client = Client::new(Arc::from(""), &name, MODERN, Era::Modern, client_capabilities);
        if let Some(level) = self.meta.level {
            let level: Level = serde_json::from_str(level.get())
                .map_err(|_| ClientRefused::Meta("no such log level".to_owned()))?;
            client.set_level(level);
        }
        Ok(client)
    }

    /// The same client as `known` if the request says the same of its sender; else the one that speaks, who is known
    /// from then on.
    pub(super) fn known(
        &self,
        known: &mut Option<KnownClient>,
    ) -> Result<Arc<Client>, ClientRefused> {
        let said = [self.meta.version, self.meta.capabilities, self.meta.info, self.meta.level];
        let parts = || said.iter().map(|part| part.map_or("", RawValue::get));
        let length: usize = parts().map(|part| part.len() + 1).sum();
        if length > MAX_KNOWN_BYTES {
            return self.client().map(Arc::new);
        }
        let same = |known: &KnownClient| {
            let mut rest = &*known.said;
            let mut next = |part: &str| {
                rest.strip_prefix(part)
                    .and_then(|left| left.strip_prefix('\0'))
                    .map(|left| rest = left)
            };
            parts().all(|part| next(part).is_some()) && rest.is_empty()
        };
        if let Some(known) = known.as_ref().filter(|known| same(known)) {
            return Ok(Arc::clone(&known.client));
        }
        let client = Arc::new(self.client()?);
        let said = parts().flat_map(|part| [part, "\0"]).collect::<String>().into_boxed_str();
        *known = Some(KnownClient { said, client: Arc::clone(&client) });
        Ok(client)
    }

    /// Whether the headers repeat what the body says (MCP 2026-07-28 §Server Validation).
    pub(super) fn agree(&self, headers: &HeaderMap, method: &str) -> Result<(), ClientRefused> {
        let lines = |name: &'static str| headers.get_all(name).iter().map(|value| value.as_bytes());
        headers::agree(METHOD, Form::Plain, lines(METHOD), Some(method))?;
        let member = match headers::name_member(method) {
            Some("name") => self.name,
            Some("uri") => self.uri,
            Some(_) => self.task_id,
            None => None,
        };
        let name = member.and_then(text);
        headers::agree(NAME, Form::Encodable, lines(NAME), name.as_deref())?;
        Ok(())
    }
}

fn missing(key: &str) -> ClientRefused {
    ClientRefused::Meta(format!("_meta must hold {key}"))
}

/// The client behind a request over a pipe, which has no headers; `None` for a request of the other era, which names no
/// revision in its `_meta`.
pub(super) fn piped(request: &Request) -> Option<Result<Client, ClientRefused>> {
    let method = &*request.method;
    match RequestParams::read(request) {
        Ok(params) if params.meta.version.is_some() || is_modern_method(method) => {
            Some(params.client())
        }
        Ok(_) => None,
        Err(refused) => is_modern_method(method).then_some(Err(refused)),
    }
}

/// Whether there is a method of that name in this era alone.
pub(super) fn is_modern_method(method: &str) -> bool {
    matches!(method, "server/discover" | "subscriptions/listen")
}

/// Whether a request names its revision in `_meta`, which those of the other era do not.
pub(super) fn names_revision(request: &Request) -> bool {
    RequestParams::read(request).is_ok_and(|params| params.meta.version.is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"roots":{}}"#;

    fn request(method: &'static str, params: &str) -> Request {
        let params = Some(Bytes::copy_from_slice(params.as_bytes()));
        Request { id: Some(Bytes::from_static(b"1")), method: method.into(), params }
    }

    fn meta(members: &Value) -> Request {
        request("tools/list", &serde_json::json!({ "_meta": members }).to_string())
    }

    fn client(request: &Request) -> Result<Client, String> {
        RequestParams::read(request).unwrap().client().map_err(|refused| refused.to_string())
    }

    #[test]
    fn a_sender_says_its_revision_and_capabilities_or_is_refused() {
        let all = json!({VERSION_KEY: MODERN, CAPABILITIES_KEY: {"roots": {}},
            "io.modelcontextprotocol/clientInfo": {"name": "ide"},
            "io.modelcontextprotocol/logLevel": "warning"});
        let client_of = |change: &dyn Fn(&mut Value)| {
            let mut members = all.clone();
            change(&mut members);
            client(&meta(&members))
        };
        let said = client_of(&|_| {}).unwrap();
        assert_eq!((&*said.name, said.era), ("ide", Era::Modern));
        assert!(said.client_capabilities.roots && !said.client_capabilities.sampling);
        assert!(said.wants(Level::Warning) && !said.wants(Level::Notice));
        for (key, value, refused) in [
            (
                VERSION_KEY,
                json!(null),
                "Invalid params: _meta must hold io.modelcontextprotocol/protocolVersion",
            ),
            (
                VERSION_KEY,
                json!(7),
                "Invalid params: _meta must hold io.modelcontextprotocol/protocolVersion",
            ),
            (VERSION_KEY, json!("2025-11-25"), "Unsupported protocol version"),
            (
                CAPABILITIES_KEY,
                json!(null),
                "Invalid params: _meta must hold io.modelcontextprotocol/clientCapabilities",
            ),
            (
                CAPABILITIES_KEY,
                json!([null, null, null]),
                "Invalid params: _meta must hold io.modelcontextprotocol/clientCapabilities",
            ),
            (
                "io.modelcontextprotocol/logLevel",
                json!("loud"),
                "Invalid params: no such log level",
            ),
        ] {
            let outcome = client_of(&|members| members[key] = value.clone());
            assert_eq!(outcome.map(|_| ()).unwrap_err(), refused, "{key} {value}");
        }
        // Who it is may be left out, or be said in a form that is not known.
        for info in [json!(null), json!(7), json!({"name": 7})] {
            let client = client_of(&|it| it["io.modelcontextprotocol/clientInfo"] = info.clone());
            assert_eq!(&*client.unwrap().name, "");
        }
    }

    #[test]
    fn who_says_the_same_again_is_the_same_client() {
        let mut known = None;
        let mut said = |text: &str| {
            RequestParams::read(&request("tools/call", text)).unwrap().known(&mut known).unwrap()
        };
        let first = said(&format!("{{{META}}},\"name\":\"a\"}}"));
        let again = said(&format!("{{\"name\":\"b\",{META}}}}}"));
        assert!(Arc::ptr_eq(&first, &again), "of the params only `_meta` is about the sender");
        let other = said(&format!("{{{META},\"io.modelcontextprotocol/logLevel\":\"error\"}}}}"));
        assert!(!Arc::ptr_eq(&first, &other) && other.wants(Level::Error));
        let back = said(&format!("{{{META}}}}}"));
        assert!(!Arc::ptr_eq(&first, &back), "only the last one is remembered");
        let name = "x".repeat(MAX_KNOWN_BYTES);
        let long =
            format!("{{{META},\"io.modelcontextprotocol/clientInfo\":{{\"name\":\"{name}\"}}}}}}");
        assert!(!Arc::ptr_eq(&said(&long), &said(&long)), "it is too long to be remembered");
        assert!(Arc::ptr_eq(&back, &said(&format!("{{{META}}}}}"))), "nor takes its place");
    }

    #[test]
    fn what_one_member_ends_with_is_not_taken_for_the_next() {
        let mut known = None;
        let mut said = |members: Value| {
            RequestParams::read(&meta(&members)).unwrap().known(&mut known).unwrap()
        };
        let info = |name: &str| json!({VERSION_KEY: MODERN, CAPABILITIES_KEY: {}, "io.modelcontextprotocol/clientInfo": {"name": name}});
        let (short, long) = (said(info("a")), said(info("ab")));
        assert_eq!((&*short.name, &*long.name), ("a", "ab"));
        // The same text, in the place of another member.
        said(json!({VERSION_KEY: MODERN, CAPABILITIES_KEY: {}}));
        let moved = meta(&json!({VERSION_KEY: MODERN, "io.modelcontextprotocol/clientInfo": {}}));
        let refused = RequestParams::read(&moved).unwrap().known(&mut known).map(drop);
        assert_eq!(refused, Err(missing(CAPABILITIES_KEY)));
    }

    #[test]
    fn headers_repeat_the_method_and_the_name() {
        let agree = |method: &'static str, params: &str, lines: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in lines {
                headers.append(*name, value.parse().unwrap());
            }
            let request = request(method, params);
            let params = RequestParams::read(&request).unwrap();
            params.agree(&headers, method).map_err(|refused| refused.to_string())
        };
        let call = r#"{"name":"t","uri":"u","taskId":"k"}"#;
        for (method, name) in [("tools/call", "t"), ("resources/read", "u"), ("tasks/get", "k")] {
            assert_eq!(agree(method, call, &[("mcp-method", method), ("mcp-name", name)]), Ok(()));
        }
        assert_eq!(agree("tools/list", call, &[("mcp-method", "tools/list")]), Ok(()));
        for (lines, refused) in [
            (&[("mcp-name", "t")][..], "Header mismatch: header mcp-method is missing"),
            (&[("mcp-method", "tools/call")], "Header mismatch: header mcp-name is missing"),
            (
                &[("mcp-method", "tools/call"), ("mcp-name", "u")],
                "Header mismatch: header mcp-name and the body say different things",
            ),
            (
                &[("mcp-method", "tools/list"), ("mcp-name", "t")],
                "Header mismatch: header mcp-method and the body say different things",
            ),
        ] {
            assert_eq!(agree("tools/call", call, lines).unwrap_err(), refused);
        }
    }

    #[test]
    fn a_message_on_a_pipe_is_modern_if_it_says_so_or_could_be_nothing_else() {
        let of = |method, params: &str| piped(&request(method, params)).map(|it| it.is_ok());
        assert_eq!(of("tools/list", "{}"), None);
        assert_eq!(of("tools/list", "7"), None, "the other era refuses it");
        assert_eq!(of("tools/list", &format!("{{{META}}}}}")), Some(true));
        assert_eq!(of("server/discover", "{}"), Some(false), "it lacks what it must say");
        assert_eq!(of("server/discover", "7"), Some(false));
    }
}
