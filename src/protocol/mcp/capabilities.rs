//! Declared capabilities of servers and clients. Pure.

use std::borrow::Cow;

use mcpproxy_json::members::{member, string};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::jsonrpc::Code;
use super::known_extensions::Extensions;
use super::revisions::Revision;

/// Capabilities of a server. All false before the first connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCapabilities {
    /// `tools/*`
    pub tools: bool,
    /// `resources/*`
    pub resources: bool,
    /// `resources/subscribe`
    pub resource_updates: bool,
    /// `prompts/*`
    pub prompts: bool,
    /// `completion/complete`
    pub completions: bool,
    /// `logging/setLevel` and log notifications.
    pub logging: bool,
}

/// Server requests and extensions that the client of a call supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCapabilities {
    /// `sampling/createMessage`
    pub sampling: bool,
    /// `elicitation/create` with a form.
    pub elicitation_forms: bool,
    /// `elicitation/create` with a URL, since 2025-11-25.
    pub elicitation_urls: bool,
    /// `roots/list`
    pub roots: bool,
    /// Known extensions.
    pub extensions: Extensions,
}

impl ClientCapabilities {
    /// All server requests.
    pub const ALL: Self = Self {
        sampling: true,
        elicitation_forms: true,
        elicitation_urls: true,
        roots: true,
        extensions: Extensions::NONE,
    };

    /// Only the server requests.
    #[must_use]
    pub fn requests(self) -> Self {
        Self { extensions: Extensions::NONE, ..self }
    }

    /// Only the extensions.
    #[must_use]
    pub fn without_requests(self) -> Self {
        Self { extensions: self.extensions, ..Self::default() }
    }

    /// Whether the client supports the request.
    pub fn grant(self, request: ServerRequest) -> bool {
        match request {
            ServerRequest::Sampling => self.sampling,
            ServerRequest::ElicitForm => self.elicitation_forms,
            ServerRequest::ElicitUrl => self.elicitation_urls,
            ServerRequest::Roots => self.roots,
            ServerRequest::ElicitOther => false,
        }
    }

    /// Error to a server whose request the client does not support: code and reason. An undeclared mode is an invalid
    /// parameter (MCP 2025-11-25 §Elicitation, error handling).
    pub fn refusal(self, request: ServerRequest) -> (Code, &'static str) {
        let elicits = self.elicitation_forms || self.elicitation_urls;
        match request {
            ServerRequest::ElicitOther => (Code::InvalidParams, "its mode is neither form nor url"),
            ServerRequest::ElicitUrl if elicits => {
                (Code::InvalidParams, "the client did not declare that it can open a URL")
            }
            ServerRequest::ElicitForm if elicits => {
                (Code::InvalidParams, "the client did not declare that it can show a form")
            }
            ServerRequest::Sampling
            | ServerRequest::ElicitForm
            | ServerRequest::ElicitUrl
            | ServerRequest::Roots => {
                (Code::MethodNotFound, "the client did not declare that it can")
            }
        }
    }

    /// Writes the capabilities as a modern client declares them, a JSON object.
    pub fn push(self, out: &mut Vec<u8>) {
        let elicitation: &[u8] = match (self.elicitation_forms, self.elicitation_urls) {
            (true, true) => br#""elicitation":{"form":{},"url":{}}"#,
            (true, false) => br#""elicitation":{"form":{}}"#,
            (false, true) => br#""elicitation":{"url":{}}"#,
            (false, false) => b"",
        };
        let sampling: &[u8] = if self.sampling { br#""sampling":{}"# } else { b"" };
        let roots: &[u8] = if self.roots { br#""roots":{}"# } else { b"" };
        let mut extensions = Vec::new();
        self.extensions.push(&mut extensions);
        out.push(b'{');
        let start = out.len();
        for member in
            [elicitation, sampling, roots, &extensions].into_iter().filter(|it| !it.is_empty())
        {
            if out.len() > start {
                out.push(b',');
            }
            out.extend_from_slice(member);
        }
        out.push(b'}');
    }

    /// The capabilities plus the one that `request` needs; a request with an unknown mode needs none.
    #[must_use]
    pub fn with(self, request: ServerRequest) -> Self {
        match request {
            ServerRequest::Sampling => Self { sampling: true, ..self },
            ServerRequest::ElicitForm => Self { elicitation_forms: true, ..self },
            ServerRequest::ElicitUrl => Self { elicitation_urls: true, ..self },
            ServerRequest::Roots => Self { roots: true, ..self },
            ServerRequest::ElicitOther => self,
        }
    }

    /// Capabilities as declared by a client of this revision: before 2025-11-25, every elicitation is a form.
    pub fn in_revision(self, revision: Revision) -> Self {
        match revision < Revision::November2025 {
            true => Self {
                elicitation_forms: self.elicitation_forms || self.elicitation_urls,
                elicitation_urls: false,
                ..self
            },
            false => self,
        }
    }
}

/// Request of a server that a client may support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerRequest {
    /// `sampling/createMessage`
    Sampling,
    /// `elicitation/create` without a mode, or with the mode `form`.
    ElicitForm,
    /// `elicitation/create` with the mode `url`.
    ElicitUrl,
    /// `elicitation/create` with another mode.
    ElicitOther,
    /// `roots/list`
    Roots,
}

impl ServerRequest {
    pub const fn method(self) -> &'static str {
        match self {
            Self::Sampling => "sampling/createMessage",
            Self::ElicitForm | Self::ElicitUrl | Self::ElicitOther => "elicitation/create",
            Self::Roots => "roots/list",
        }
    }

    /// The request with this method and these raw params; `None` if no client supports the method.
    pub fn of(method: &str, params: Option<&RawValue>) -> Option<Self> {
        Some(match method {
            "sampling/createMessage" => Self::Sampling,
            "elicitation/create" => match mode(params).as_deref() {
                None | Some("form") => Self::ElicitForm,
                Some("url") => Self::ElicitUrl,
                Some(_) => Self::ElicitOther,
            },
            "roots/list" => Self::Roots,
            _ => return None,
        })
    }
}

/// `mode` of an elicitation; empty if it is not a string.
fn mode(params: Option<&RawValue>) -> Option<Cow<'_, str>> {
    Some(string(member(params?.get(), "mode")?).unwrap_or_default())
}

impl<'de> Deserialize<'de> for ClientCapabilities {
    /// Reads `ClientCapabilities`: a member that is present is declared. Elicitation without a mode means forms.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Members<'a> {
            sampling: Option<Empty>,
            elicitation: Option<Modes>,
            roots: Option<Empty>,
            #[serde(borrow)]
            extensions: Option<&'a RawValue>,
        }
        #[derive(Deserialize)]
        struct Modes {
            form: Option<Empty>,
            url: Option<Empty>,
        }
        #[derive(Deserialize)]
        struct Empty {}
        let Members { sampling, elicitation, roots, extensions } =
            Members::deserialize(deserializer)?;
        let elicits = |has: fn(&Modes) -> bool| elicitation.as_ref().is_some_and(has);
        Ok(Self {
            sampling: sampling.is_some(),
            elicitation_forms: elicits(|it| it.form.is_some() || it.url.is_none()),
            elicitation_urls: elicits(|it| it.url.is_some()),
            roots: roots.is_some(),
            extensions: extensions.map(|it| Extensions::declared(it.get())).unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn present_members_are_declared_capabilities() {
        let client_capabilities =
            |json: &str| serde_json::from_str::<ClientCapabilities>(json).ok();
        for (modes, elicitation_forms, elicitation_urls) in [
            ("{}", true, false),
            (r#"{"url":{}}"#, false, true),
            (r#"{"url":{},"form":{}}"#, true, true),
            (r#"{"form":{}}"#, true, false),
        ] {
            let declared = format!(
                r#"{{"roots":{{"listChanged":true}},"sampling":{{}},"elicitation":{modes}}}"#
            );
            let all = ClientCapabilities {
                elicitation_forms,
                elicitation_urls,
                ..ClientCapabilities::ALL
            };
            assert_eq!(client_capabilities(&declared), Some(all), "{modes}");
            let forms = ClientCapabilities {
                elicitation_forms: true,
                elicitation_urls: false,
                ..ClientCapabilities::ALL
            };
            assert_eq!(all.in_revision(Revision::June2025), forms, "{modes}");
            assert_eq!(all.in_revision(Revision::November2025), all, "{modes}");
        }
        assert_eq!(
            client_capabilities(r#"{"experimental":{}}"#),
            Some(ClientCapabilities::default())
        );
        for odd in ["7", "null", "[]", r#"{"io.modelcontextprotocol/ui":[]}"#] {
            let declared = client_capabilities(&format!(r#"{{"extensions":{odd}}}"#));
            assert_eq!(declared, Some(ClientCapabilities::default()), "{odd}");
        }
        assert_eq!(client_capabilities("7"), None);
        assert_eq!(client_capabilities(r#"{"roots":7}"#), None);
    }

    #[test]
    fn pro_37_written_capabilities_are_read_back_unchanged() {
        let requests = [
            ServerRequest::Sampling,
            ServerRequest::ElicitForm,
            ServerRequest::ElicitUrl,
            ServerRequest::Roots,
        ];
        for set in 0..64 {
            let chosen = requests.into_iter().enumerate().filter(|(at, _)| set >> at & 1 == 1);
            let extensions = Extensions::of_bits(set >> 4);
            let none = ClientCapabilities { extensions, ..ClientCapabilities::default() };
            let declared = chosen.fold(none, |all, (_, it)| all.with(it));
            let mut out = b"x".to_vec();
            declared.push(&mut out);
            let text = String::from_utf8(out).unwrap();
            let read: ClientCapabilities = serde_json::from_str(&text[1..]).unwrap();
            assert_eq!(read, declared, "{text}");
            assert_eq!(text == "x{}", set == 0, "{text}");
        }
    }

    #[test]
    fn pro_32_elicitation_is_permitted_by_its_mode() {
        let (forms, urls) = (
            ClientCapabilities { elicitation_forms: true, ..ClientCapabilities::default() },
            ClientCapabilities { elicitation_urls: true, ..ClientCapabilities::default() },
        );
        for (params, expected, by_forms, by_urls) in [
            (r#"{"message":"m"}"#, ServerRequest::ElicitForm, true, false),
            (r#"{"mode":"form"}"#, ServerRequest::ElicitForm, true, false),
            (r#"{"url":"x","m\u006fde":"ur\u006c"}"#, ServerRequest::ElicitUrl, false, true),
            (r#"{"mode":"other"}"#, ServerRequest::ElicitOther, false, false),
            (r#"{"mode":7}"#, ServerRequest::ElicitOther, false, false),
        ] {
            let raw = RawValue::from_string(params.to_owned()).unwrap();
            let request = ServerRequest::of("elicitation/create", Some(&raw)).unwrap();
            assert_eq!(request, expected, "{params}");
            assert_eq!((forms.grant(request), urls.grant(request)), (by_forms, by_urls));
            assert!(!ClientCapabilities::default().grant(request));
            for refusing in [forms, urls].into_iter().filter(|it| !it.grant(request)) {
                assert_eq!(refusing.refusal(request).0, Code::InvalidParams, "{params}");
            }
        }
        let none = ClientCapabilities::default();
        assert_eq!(none.refusal(ServerRequest::ElicitForm).0, Code::MethodNotFound);
        assert_eq!(ServerRequest::of("elicitation/create", None), Some(ServerRequest::ElicitForm));
        assert_eq!(ServerRequest::of("tools/call", None), None);
    }
}
