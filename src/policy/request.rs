//! One request to a server with all inputs of its decision, and the digest of an exact call.
//!
//! An approval is bound to the BLAKE3 digest of a call (CAP-8). The digest covers principal, target, operation, hash of the tool's
//! definition, version of the rules, arguments, the relevant members of `_meta` and `inputResponses`, in canonical form: members sorted by
//! name, names and strings unescaped, white space between tokens removed. Everything else, such as the spelling of numbers, counts as
//! written. Every part is preceded by its length, so that different calls never produce the same input.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use blake3::Hasher;
use mcpproxy_json::members::{members, string};
use serde_json::value::RawValue;

use crate::intent::{Intent, Operation};
use crate::principal::Principal;
use crate::session_facts::SessionFacts;
use crate::tool::Tool;

/// Input of [`admit`](super::admit).
#[derive(Clone, Debug)]
pub struct AdmissionRequest<'a> {
    pub principal: &'a Principal,
    pub access: Access,
    /// Arguments as sent to the server: one raw JSON object without duplicate keys, or empty if there are none.
    pub arguments: &'a [u8],
    /// Members of `_meta` that are part of the request ([`meta::asked`](mcpproxy_protocol::mcp::meta::asked)), or
    /// empty.
    pub meta: &'a [u8],
    /// The request's `inputResponses`, raw JSON, or empty. A client may send responses that its server never asked for.
    pub inputs: &'a [u8],
    /// Stated intent; `None` if the request cannot state one.
    pub intent: Option<Intent<'a>>,
    /// Client name as the client states it, unverified, or empty.
    pub client: &'a str,
    /// Facts of the session joined with those of the principal.
    pub session: SessionFacts,
    /// Whether a request other than a tool call sends data chosen by the client to a server of the open world. For a tool call, the tool's
    /// exposure decides this.
    pub carries_out: bool,
    /// Wall-clock time.
    pub now: SystemTime,
}

pub const PROMPTS_GET: &str = "prompts/get";
pub const TOOLS_CALL: &str = "tools/call";
pub const COMPLETION_COMPLETE: &str = "completion/complete";

/// Target of a request, under the name or URI that the server uses.
#[derive(Clone, Debug)]
pub enum Access {
    /// A `tools/call` request.
    Tool(ToolAccess),
    /// A `resources/read`, `resources/subscribe` or `resources/unsubscribe` request.
    Resource {
        /// Server name in the config.
        server: Arc<str>,
        uri: Box<str>,
        request: ResourceRequest,
    },
    /// A `prompts/get` request.
    Prompt {
        /// The server's name in the config.
        server: Arc<str>,
        name: Box<str>,
    },
    /// A `completion/complete` request.
    Completion {
        /// The server's name in the config.
        server: Arc<str>,
        /// Owner of the completed argument.
        of: Reference,
    },
    /// A method that no revision of the protocol defines, at the endpoint of one server.
    Method {
        /// The server's name in the config.
        server: Arc<str>,
        method: Arc<str>,
    },
    /// A `tasks/get`, `tasks/update`, `tasks/cancel` or `tasks/result` request.
    Task(TaskAccess),
}

/// Request about a task that a server created for a tool call.
#[derive(Clone, Debug)]
pub struct TaskAccess {
    call: ToolAccess,
    request: TaskRequest,
    /// The server's own task id.
    id: Arc<str>,
    is_by_proxy: bool,
}

/// Operation on a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskRequest {
    /// The method `tasks/get`.
    Get,
    /// The method `tasks/update` of the extension of 2026-07-28.
    Update,
    /// The method `tasks/cancel`.
    Cancel,
    /// The method `tasks/result` of 2025-11-25.
    Result,
}

/// Tool call with an operation that agrees with its intent.
#[derive(Clone, Debug)]
pub struct ToolAccess {
    tool: Arc<Tool>,
    operation: Operation,
}

/// Operation on a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceRequest {
    /// The method `resources/read`.
    Read,
    /// The method `resources/subscribe`.
    Subscribe,
    /// The method `resources/unsubscribe`.
    Unsubscribe,
    /// The method `resources/directory/read` (SEP-2640).
    ReadDirectory,
    /// The method `skills/get` (SEP-2640).
    GetSkill,
}

/// Owner of arguments that can be completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// Prompt with this name.
    Prompt(Box<str>),
    /// Resource or resource template with this URI.
    Resource(Box<str>),
}

impl ToolAccess {
    /// Call through one of the call tools, with the intent's operation.
    pub fn declared(tool: Arc<Tool>, intent: &Intent<'_>) -> Self {
        Self { tool, operation: intent.operation() }
    }

    /// Call under the tool's own name, without a stated intent: the operation follows from the effective side effect (CAP-5).
    pub fn direct(tool: Arc<Tool>) -> Self {
        let operation = Operation::recommended(tool.capability);
        Self { tool, operation }
    }

    pub fn tool(&self) -> &Arc<Tool> {
        &self.tool
    }

    pub fn operation(&self) -> Operation {
        self.operation
    }
}

impl TaskRequest {
    /// Protocol method.
    pub const fn method(self) -> &'static str {
        match self {
            Self::Get => "tasks/get",
            Self::Update => "tasks/update",
            Self::Cancel => "tasks/cancel",
            Self::Result => "tasks/result",
        }
    }
}

impl TaskAccess {
    pub fn new(call: ToolAccess, request: TaskRequest, id: Arc<str>) -> Self {
        Self { call, request, id, is_by_proxy: false }
    }

    /// The same request, made by the proxy itself on behalf of the principal. The number of these requests is bounded elsewhere, so rates
    /// and the limits of principals do not apply.
    #[must_use]
    pub fn by_proxy(self) -> Self {
        Self { is_by_proxy: true, ..self }
    }

    /// The call that created the task. Its operation is the one recommended for the tool.
    pub fn call(&self) -> &ToolAccess {
        &self.call
    }

    /// The operation on the task.
    pub fn request(&self) -> TaskRequest {
        self.request
    }

    /// The server's own task id.
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// Whether the request sends the server data that the client chooses.
    pub fn sends_input(&self) -> bool {
        match self.request {
            TaskRequest::Update => true,
            TaskRequest::Get | TaskRequest::Cancel | TaskRequest::Result => false,
        }
    }

    /// The same request for the current definition of the tool.
    #[must_use]
    pub fn of_tool(self, tool: Arc<Tool>) -> Self {
        Self { call: ToolAccess::direct(tool), ..self }
    }
}

impl ResourceRequest {
    /// Protocol method.
    pub const fn method(self) -> &'static str {
        match self {
            Self::Read => "resources/read",
            Self::Subscribe => "resources/subscribe",
            Self::Unsubscribe => "resources/unsubscribe",
            Self::ReadDirectory => "resources/directory/read",
            Self::GetSkill => "skills/get",
        }
    }
}

impl Access {
    pub fn server(&self) -> &Arc<str> {
        match self {
            Self::Tool(call) | Self::Task(TaskAccess { call, .. }) => &call.tool.name.server,
            Self::Resource { server, .. }
            | Self::Prompt { server, .. }
            | Self::Completion { server, .. }
            | Self::Method { server, .. } => server,
        }
    }

    /// The method of the request.
    pub fn method(&self) -> &str {
        match self {
            Self::Method { method, .. } => method,
            known => known.known_method().unwrap_or_default(),
        }
    }

    /// The method, if the protocol defines it.
    pub fn known_method(&self) -> Option<&'static str> {
        match self {
            Self::Tool(_) => Some(TOOLS_CALL),
            Self::Resource { request, .. } => Some(request.method()),
            Self::Prompt { .. } => Some(PROMPTS_GET),
            Self::Completion { .. } => Some(COMPLETION_COMPLETE),
            Self::Task(task) => Some(task.request.method()),
            Self::Method { .. } => None,
        }
    }

    /// Name of the tool or prompt, or URI of the resource, as the server knows it; empty for other methods.
    pub fn target(&self) -> &str {
        match self {
            Self::Tool(call) => &call.tool.name.tool,
            Self::Resource { uri, .. } => uri,
            Self::Prompt { name, .. } => name,
            Self::Completion {
                of: Reference::Prompt(name) | Reference::Resource(name), ..
            } => name,
            Self::Method { .. } => "",
            Self::Task(task) => task.id(),
        }
    }

    /// Whether a modern server may answer by asking for input (MCP 2026-07-28 §Supported Requests).
    pub fn may_require_input(&self) -> bool {
        match self {
            Self::Tool(_) | Self::Prompt { .. } => true,
            Self::Resource { request, .. } => match request {
                ResourceRequest::Read => true,
                ResourceRequest::Subscribe
                | ResourceRequest::Unsubscribe
                | ResourceRequest::ReadDirectory
                | ResourceRequest::GetSkill => false,
            },
            Self::Completion { .. } | Self::Method { .. } | Self::Task(_) => false,
        }
    }

    /// Label shown with the server in records and messages: the tool name, otherwise the method.
    pub fn label(&self) -> &str {
        match self {
            Self::Tool(call) => &call.tool.name.tool,
            _ => self.method(),
        }
    }

    /// The tool whose result the answer may hold, if any: the called tool, or the tool of a task.
    pub fn tool(&self) -> Option<&Arc<Tool>> {
        match self {
            Self::Tool(call) | Self::Task(TaskAccess { call, .. }) => Some(&call.tool),
            Self::Resource { .. }
            | Self::Prompt { .. }
            | Self::Completion { .. }
            | Self::Method { .. } => None,
        }
    }

    /// Whether the proxy itself makes the request.
    pub(crate) fn is_by_proxy(&self) -> bool {
        matches!(self, Self::Task(task) if task.is_by_proxy)
    }

    /// The called tool, if any.
    pub fn called_tool(&self) -> Option<&Arc<Tool>> {
        self.tool().filter(|_| matches!(self, Self::Tool(_)))
    }
}

impl fmt::Display for Access {
    /// Formats as `server:label`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.server(), self.label())
    }
}

/// Maximum number of bytes of arguments, `_meta` members and `inputResponses` that are presented for approval.
pub const MAX_ARGUMENTS_BYTES: usize = 256 * 1024;
/// Maximum nesting in canonical form; requests with deeper nesting are rejected earlier. Deeper values are hashed as written.
const MAX_DEPTH: usize = 128;

/// Digest of one exact call.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallDigest(blake3::Hash);

/// Digest of calls of one kind; independent of the arguments and rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KindDigest(blake3::Hash);

impl fmt::Display for KindDigest {
    /// Formats as 64 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_hex())
    }
}

/// Hash of a tool's definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DefinitionHash(blake3::Hash);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ArgumentsTooLong {
    pub(super) limit: usize,
}

impl fmt::Display for CallDigest {
    /// Formats as 64 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_hex())
    }
}

impl fmt::Debug for CallDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallDigest({self})")
    }
}

/// Hash of a tool's definition; other targets are defined by their name alone.
pub(super) fn definition(access: &Access) -> DefinitionHash {
    let mut hasher = Hasher::new_derive_key("mcpproxy 2026-11 approval: definition of a tool");
    if let Some(tool) = access.tool() {
        let Tool { title, description, input_schema, output_schema, annotations_raw, .. } = &**tool;
        let raw = |it: &Option<Box<RawValue>>| it.as_deref().map(|it| it.get().to_owned());
        optional(&mut hasher, title.as_deref());
        part(&mut hasher, description.as_bytes());
        part(&mut hasher, input_schema.get().as_bytes());
        optional(&mut hasher, raw(output_schema).as_deref());
        optional(&mut hasher, raw(annotations_raw).as_deref());
    }
    DefinitionHash(hasher.finalize())
}

/// Digest of all requests by `principal` for one tool and operation, one resource, or one prompt.
pub(super) fn kind(
    principal: &str,
    access: &Access,
    DefinitionHash(definition): DefinitionHash,
) -> KindDigest {
    let mut hasher = Hasher::new_derive_key("mcpproxy 2026-11 approval: calls of one kind");
    asked(&mut hasher, principal, access);
    part(&mut hasher, definition.as_bytes());
    KindDigest(hasher.finalize())
}

pub(super) fn of(
    request: &AdmissionRequest<'_>,
    access: &Access,
    DefinitionHash(definition): DefinitionHash,
    rules_version: &[u8; 32],
) -> Result<CallDigest, ArgumentsTooLong> {
    let texts = [request.arguments, request.meta, request.inputs];
    if texts.iter().map(|text| text.len()).sum::<usize>() > MAX_ARGUMENTS_BYTES {
        return Err(ArgumentsTooLong { limit: MAX_ARGUMENTS_BYTES });
    }
    let mut hasher = Hasher::new_derive_key("mcpproxy 2026-11 approval: one call");
    asked(&mut hasher, request.principal.id(), access);
    part(&mut hasher, definition.as_bytes());
    part(&mut hasher, rules_version);
    whole(&mut hasher, request.arguments);
    if !request.meta.is_empty() {
        part(&mut hasher, b"_meta");
        whole(&mut hasher, request.meta);
    }
    if !request.inputs.is_empty() {
        part(&mut hasher, b"inputResponses");
        whole(&mut hasher, request.inputs);
    }
    Ok(CallDigest(hasher.finalize()))
}

/// Hashes a JSON text.
fn whole(hasher: &mut Hasher, text: &[u8]) {
    match std::str::from_utf8(text) {
        Ok(text) => value(hasher, text.trim_ascii(), 0),
        Err(_) => as_written(hasher, text),
    }
}

/// Hashes principal and target.
fn asked(hasher: &mut Hasher, principal: &str, access: &Access) {
    part(hasher, principal.as_bytes());
    part(hasher, access.method().as_bytes());
    part(hasher, access.server().as_bytes());
    match access {
        Access::Tool(call) => {
            part(hasher, call.tool().name.tool.as_bytes());
            part(hasher, call.operation().as_str().as_bytes());
        }
        Access::Resource { uri, request, .. } => {
            part(hasher, uri.as_bytes());
            part(hasher, request.method().as_bytes());
        }
        Access::Prompt { name, .. } => part(hasher, name.as_bytes()),
        Access::Completion { of: Reference::Prompt(name), .. } => {
            part(hasher, b"prompt");
            part(hasher, name.as_bytes());
        }
        Access::Completion { of: Reference::Resource(uri), .. } => {
            part(hasher, b"resource");
            part(hasher, uri.as_bytes());
        }
        // The method is hashed above.
        Access::Method { .. } => part(hasher, b"method"),
        Access::Task(task) => {
            part(hasher, task.call.tool().name.tool.as_bytes());
            part(hasher, task.id.as_bytes());
        }
    }
}

/// Hashes a value in canonical form.
fn value(hasher: &mut Hasher, text: &str, depth: usize) {
    let canonical = depth < MAX_DEPTH
        && match text.as_bytes().first() {
            Some(b'{') => object(hasher, text, depth).is_some(),
            Some(b'[') => array(hasher, text, depth).is_some(),
            Some(b'"') => string(text).map(|it| tagged(hasher, b's', it.as_bytes())).is_some(),
            Some(_) | None => false,
        };
    if !canonical {
        as_written(hasher, text.as_bytes());
    }
}

/// Hashes an object; `None`, without hashing anything, if `text` is not an object.
fn object(hasher: &mut Hasher, text: &str, depth: usize) -> Option<()> {
    let mut all: Vec<_> = members(text).ok()?.collect::<Result<_, _>>().ok()?;
    all.sort_by(|(a, _), (b, _)| a.as_bytes().cmp(b.as_bytes()));
    tagged(hasher, b'o', &(all.len() as u64).to_le_bytes());
    for (name, inner) in all {
        part(hasher, name.as_bytes());
        value(hasher, inner, depth + 1);
    }
    Some(())
}

fn array(hasher: &mut Hasher, text: &str, depth: usize) -> Option<()> {
    let all: Vec<&RawValue> = serde_json::from_str(text).ok()?;
    tagged(hasher, b'a', &(all.len() as u64).to_le_bytes());
    for inner in all {
        value(hasher, inner.get(), depth + 1);
    }
    Some(())
}

fn as_written(hasher: &mut Hasher, bytes: &[u8]) {
    tagged(hasher, b'w', bytes);
}

fn tagged(hasher: &mut Hasher, tag: u8, bytes: &[u8]) {
    hasher.update(&[tag]);
    part(hasher, bytes);
}

fn optional(hasher: &mut Hasher, text: Option<&str>) {
    match text {
        Some(text) => tagged(hasher, b'+', text.as_bytes()),
        None => tagged(hasher, b'-', b""),
    }
}

fn part(hasher: &mut Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use super::*;
    use crate::{Principal, ResourceRequest, SessionFacts};

    fn digest_of(
        principal: &Principal,
        name: &str,
        arguments: &[u8],
        rules_version: u8,
    ) -> Result<CallDigest, ArgumentsTooLong> {
        let access = Access::Prompt { server: Arc::from("s"), name: name.into() };
        let request = AdmissionRequest {
            principal,
            access: access.clone(),
            arguments,
            meta: b"",
            inputs: b"",
            intent: None,
            client: "",
            session: SessionFacts::default(),
            carries_out: false,
            now: SystemTime::UNIX_EPOCH,
        };
        of(&request, &access, definition(&access), &[rules_version; 32])
    }

    fn digest(arguments: &str) -> CallDigest {
        digest_of(&Principal::Admin, "p", arguments.as_bytes(), 0).unwrap()
    }

    #[test]
    fn cap_8_equivalent_spellings_have_one_digest() {
        for (one, other) in [
            (
                r#"{"a":1,"b":[1,{"c":"x","d":null}]}"#,
                r#"{ "b" : [1, {"d":null,"c":"x"} ], "a":1 }"#,
            ),
            (r#"{"é":"ü/"}"#, "{\"\\u00e9\":\"\\u00fc\\/\"}"),
            (r#"{"a":"\n"}"#, r#"{"a":"\u000a"}"#),
            ("{}", "  { } "),
        ] {
            assert_eq!(digest(one), digest(other), "{one} {other}");
        }
    }

    #[test]
    fn cap_8_call_with_one_altered_byte_is_a_different_call() {
        let whole = r#"{"path":"/tmp/x","n":10,"deep":[[{"k":true}],"]"],"e":"","s":[1,2]}"#;
        let original = digest(whole);
        for at in 0..whole.len() {
            let mut altered = whole.as_bytes().to_vec();
            altered[at] ^= 1;
            let altered = digest_of(&Principal::Admin, "p", &altered, 0).unwrap();
            assert_ne!(altered, original, "byte {at}");
        }
        for (one, other) in [
            ("{\"a\":1}", "{\"a\":1.0}"),
            ("{\"a\":1}", "{\"a\":\"1\"}"),
            ("{\"a\":[1,2]}", "{\"a\":[2,1]}"),
            ("{\"a\":[[1],2]}", "{\"a\":[[1,2]]}"),
            ("{\"a\":{\"b\":1}}", "{\"a\":{},\"b\":1}"),
            ("{\"a\":\"\",\"b\":\"x\"}", "{\"a\":\"x\",\"b\":\"\"}"),
            ("{\"a\":null}", "{}"),
            ("{}", ""),
        ] {
            assert_ne!(digest(one), digest(other), "{one} {other}");
        }
    }

    #[test]
    fn cap_8_call_with_different_meta_is_a_different_call() {
        let with_inputs = |arguments: &str, meta: &str, inputs: &str| {
            let access = Access::Prompt { server: Arc::from("s"), name: "p".into() };
            let request = AdmissionRequest {
                principal: &Principal::Admin,
                access: access.clone(),
                arguments: arguments.as_bytes(),
                meta: meta.as_bytes(),
                inputs: inputs.as_bytes(),
                intent: None,
                client: "",
                session: SessionFacts::default(),
                carries_out: false,
                now: SystemTime::UNIX_EPOCH,
            };
            of(&request, &access, definition(&access), &[0; 32])
        };
        let with = |arguments: &str, meta: &str| with_inputs(arguments, meta, "");
        let original = with("{}", r#"{"x/dry_run":true,"y":1}"#).unwrap();
        assert_eq!(with("{}", r#"{"y":1, "x/dry_run" : true}"#), Ok(original));
        for other in [r#"{"x/dry_run":false,"y":1}"#, r#"{"y":1}"#, ""] {
            assert_ne!(with("{}", other), Ok(original), "{other}");
        }
        assert_ne!(with(r#"{"y":1}"#, ""), with("", r#"{"y":1}"#));
        let [first, second] = [r#"{"q":{"content":{"a":1}}}"#, r#"{"q":{"content":{"a":2}}}"#]
            .map(|inputs| with_inputs("{}", "", inputs).unwrap());
        assert_ne!(first, second, "inputResponses");
        assert_ne!(Ok(first), with("{}", ""));
        assert_ne!(Ok(first), with("{}", r#"{"q":{"content":{"a":1}}}"#));
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(MAX_ARGUMENTS_BYTES));
        assert_eq!(with("{}", &long), Err(ArgumentsTooLong { limit: MAX_ARGUMENTS_BYTES }));
    }

    #[test]
    fn cap_8_digest_depends_on_principal_target_and_rules() {
        let of = |principal, name, rules| digest_of(&principal, name, b"{}", rules).unwrap();
        let original = of(Principal::Admin, "p", 0);
        assert_eq!(original, of(Principal::Admin, "p", 0));
        assert_ne!(original, of(Principal::Anonymous, "p", 0));
        assert_ne!(original, of(Principal::Admin, "q", 0));
        assert_ne!(original, of(Principal::Admin, "p", 1));
    }

    #[test]
    fn cap_8_kind_digest_depends_on_target_and_operation() {
        let resource = |uri: &str, request| Access::Resource {
            server: Arc::from("s"),
            uri: uri.into(),
            request,
        };
        let prompt = |name: &str| Access::Prompt { server: Arc::from("s"), name: name.into() };
        let all = [
            resource("a", ResourceRequest::Read),
            resource("b", ResourceRequest::Read),
            resource("a", ResourceRequest::Subscribe),
            resource("a", ResourceRequest::ReadDirectory),
            resource("a", ResourceRequest::GetSkill),
            prompt("a"),
            prompt("b"),
        ];
        for (one, first) in all.iter().enumerate() {
            for (other, second) in all.iter().enumerate() {
                let kinds = [first, second].map(|it| kind("admin", it, definition(it)));
                assert_eq!(kinds[0] == kinds[1], one == other, "{first:?} {second:?}");
            }
            let others = kind("anonymous", first, definition(first));
            assert!(others != kind("admin", first, definition(first)), "{first:?}");
        }
    }

    #[test]
    fn oversized_arguments_have_no_digest() {
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(MAX_ARGUMENTS_BYTES));
        let refused = digest_of(&Principal::Admin, "p", long.as_bytes(), 0);
        assert_eq!(refused, Err(ArgumentsTooLong { limit: MAX_ARGUMENTS_BYTES }));
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(1000), "]".repeat(1000));
        assert_eq!(digest(&deep), digest(&deep));
    }
}
