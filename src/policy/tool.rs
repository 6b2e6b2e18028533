//! An upstream's tool: its name, annotations, capability and schemas, and how its results and arguments are validated; the parameters that
//! HTTP headers repeat; and the compact id of its server.
//!
//! [`ParameterHeaders`] reads the annotation `x-mcp-header` of an input schema once, at discovery, and extracts the header
//! values of a call (MCP 2026-07-28 §Custom Headers from Tool Parameters). [`mcpproxy_protocol::mcp::headers`] encodes and
//! compares values; sending and checking headers is left to the callers.
//!
//! Pure values, independent of discovery and calls.

mod capability;
mod input_schema;
pub mod signature;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use thiserror::Error;

use mcpproxy_json::members::{members, string};
use mcpproxy_protocol::mcp::headers::{Form, PARAM_PREFIX, decimal};
use mcpproxy_schema::SUBSCHEMA_KEYWORDS;
use mcpproxy_schema::compile::Schema;
use mcpproxy_schema::declared::{DeclaredNames, KeyConflict};
use mcpproxy_schema::output::{Mode, Policy, Treatment};

pub use capability::{
    Annotations, Approval, Capability, CapabilityOverride, Exposure, Idempotence, Pattern, Rules,
    SensitiveHint, Sensitivity, SideEffect, StatedBy, World,
};
pub use input_schema::example;

/// State of a tool's declared output schema.
#[derive(Clone, Debug)]
pub enum OutputSchema {
    /// No schema is declared: results are not validated (FR-A7).
    Absent,
    Compiled(Arc<Schema>),
    /// The schema is declared but unusable, with the reason in one line (FR-A9).
    Unusable(Arc<str>),
    /// The schema is being compiled; the outcome is stored here. Calls whose results must be validated wait for it.
    Compiling(Arc<OnceLock<OutputSchema>>),
}

impl OutputSchema {
    /// Current state. Replaces [`Compiling`](Self::Compiling) with the outcome once it is available.
    pub fn now(&self) -> &Self {
        match self {
            Self::Compiling(awaited) => awaited.get().unwrap_or(self),
            Self::Absent | Self::Compiled(_) | Self::Unusable(_) => self,
        }
    }
}

/// Whether a tool's definition is trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    #[default]
    Given,
    /// The tool is in quarantine until an operator approves it: agents neither see nor call it.
    Withheld,
}

/// Immutable entry of the catalog; a new definition creates a new entry.
#[derive(Clone, Debug)]
pub struct Tool {
    pub name: ToolName,
    /// `title`, if the server gave one.
    pub title: Option<Box<str>>,
    /// `description`, empty if the server gave none.
    pub description: Box<str>,
    /// `inputSchema`, the server's own bytes.
    pub input_schema: Box<RawValue>,
    /// `outputSchema`, the server's own bytes, if declared (FR-A1).
    pub output_schema: Option<Box<RawValue>>,
    /// `annotations`, the server's own bytes, if declared (FR-022).
    pub annotations_raw: Option<Box<RawValue>>,
    /// The hints read from `annotations_raw`.
    pub annotations: Annotations,
    /// The effective capability (CAP-2, CAP-3).
    pub capability: Capability,
    /// Whether a failed call may be retried, and the source of this information.
    pub idempotence: Idempotence,
    /// Origin of the effective side effect.
    pub side_effect_by: StatedBy,
    /// Sensitivity of the tool's data, and whether the tool reaches the open world.
    pub exposure: Exposure,
    /// Schema of its results.
    pub schema: OutputSchema,
    /// Validation mode and limits of its results (FR-A4).
    pub policy: Policy,
    /// Validation of its arguments.
    pub input: Input,
    /// Size above which an agent gets a part of the result and a handle for the rest; `None` if unlimited.
    pub result_limit: Option<ResultLimit>,
    /// Parameters that HTTP headers repeat; `None` if there are none or the annotations are invalid.
    pub parameter_headers: Option<Arc<ParameterHeaders>>,
    /// Whether only apps may use the tool: it is hidden from models (SEP-1865, `visibility`).
    pub is_app_only: bool,
    /// Whether its definition is trusted.
    pub trust: Trust,
    /// Cached result of [`Tool::signature`]; empty in a new tool.
    pub signature: OnceLock<Box<str>>,
}

impl Tool {
    /// A key of `arguments` that differs only by case from a declared parameter, or a conflict of this kind that cannot
    /// be ruled out.
    pub fn key_conflict(&self, arguments: &[u8]) -> Option<KeyConflict> {
        self.input.key_conflict(self.input_schema.get().as_bytes(), arguments)
    }

    /// Creates a tool that has only a name, annotations and operator overrides.
    pub fn named(
        name: ToolName,
        annotations: Annotations,
        rules: &Rules<CapabilityOverride>,
    ) -> Self {
        let (capability, side_effect_by) = Capability::effective(annotations, rules, &name.tool);
        let exposure = Exposure::effective(annotations, rules, &name.tool);
        let idempotence = Idempotence::effective(annotations, rules, &name.tool);
        Self {
            name,
            title: None,
            description: "".into(),
            input_schema: RawValue::from_string("{}".to_owned())
                .unwrap_or_else(|_| RawValue::NULL.to_owned()),
            output_schema: None,
            annotations_raw: None,
            annotations,
            capability,
            idempotence,
            side_effect_by,
            exposure,
            schema: OutputSchema::Absent,
            policy: Policy::default(),
            input: Input::default(),
            result_limit: None,
            is_app_only: false,
            trust: Trust::Given,
            parameter_headers: None,
            signature: OnceLock::new(),
        }
    }

    /// Whether neither the server's annotations nor the operator's capabilities mark the tool read-only or destructive (FR-043).
    pub fn is_unannotated(&self) -> bool {
        let Annotations { read_only_hint, destructive_hint, .. } = self.annotations;
        self.side_effect_by == StatedBy::Server
            && read_only_hint != Some(true)
            && destructive_hint != Some(true)
    }

    /// Name and parameters in one line ([`signature::signature`]), computed once.
    pub fn signature(&self) -> &str {
        self.signature
            .get_or_init(|| signature::signature(&self.name.tool, self.input_schema.get()).into())
    }

    /// The same tool with this trust. Parameter headers of an untrusted tool are not read, since their text could
    /// reach agents in an error.
    pub fn trusted(&self, trust: Trust) -> Self {
        let parameter_headers = match trust {
            Trust::Given => ParameterHeaders::read(&self.input_schema).ok().flatten().map(Arc::new),
            Trust::Withheld => None,
        };
        Self { parameter_headers, trust, ..self.clone() }
    }

    /// Current treatment of its results.
    pub fn treatment(&self) -> Treatment {
        match (self.schema.now(), self.policy.mode) {
            (OutputSchema::Absent | OutputSchema::Unusable(_), _) | (_, Mode::Off) => {
                Treatment::Forward
            }
            (OutputSchema::Compiled(_) | OutputSchema::Compiling(_), Mode::Warn) => {
                Treatment::ForwardAndJudge
            }
            (OutputSchema::Compiled(_) | OutputSchema::Compiling(_), Mode::Strict) => {
                Treatment::Hold
            }
        }
    }
}

/// Full name `server:tool`, under which agents call a tool (FR-005).
///
/// Server names do not contain a colon, so the first colon is the separator.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ToolName {
    /// Server name in the config.
    pub server: Arc<str>,
    /// Tool name as given by its server.
    pub tool: Arc<str>,
}

impl ToolName {
    /// Splits at the first colon; `None` if there is no colon, or if one of the parts is empty.
    pub fn parse(name: &str) -> Option<Self> {
        let (server, tool) = Self::split(name)?;
        Some(Self { server: server.into(), tool: tool.into() })
    }

    pub fn split(name: &str) -> Option<(&str, &str)> {
        name.split_once(':').filter(|(server, tool)| !server.is_empty() && !tool.is_empty())
    }
}

impl fmt::Display for ToolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.server, self.tool)
    }
}

/// `input_validation`: treatment of arguments that do not match the tool's `inputSchema`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct InputPolicy {
    pub mode: InputMode,
}

/// Consequence of arguments that do not match the tool's `inputSchema`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum InputMode {
    /// Arguments are not validated.
    Off,
    /// Arguments are sent, and the violation is recorded.
    Warn,
    /// Arguments that no server could accept ([`misfit`](mcpproxy_schema::misfit)) are not sent; others are treated as in `warn`.
    Strict,
    /// Same as `strict`, but a string that contains the JSON value that the schema requires is sent as that value.
    #[default]
    Coerce,
}

impl InputMode {
    /// Word in the config and in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Warn => "warn",
            Self::Strict => "strict",
            Self::Coerce => "coerce",
        }
    }

    /// Whether arguments that no server could accept are refused.
    pub fn refuses(self) -> bool {
        match self {
            Self::Strict | Self::Coerce => true,
            Self::Off | Self::Warn => false,
        }
    }
}

/// Validation of a tool's arguments.
#[derive(Clone, Debug, Default)]
pub struct Input {
    pub policy: InputPolicy,
    /// Shared by all versions of the tool with the same schema.
    schema: Arc<OnceLock<InputSchema>>,
    /// Names of the declared parameters, read at first use. Shared like the schema.
    declared: Arc<OnceLock<DeclaredNames>>,
}

/// State of an `inputSchema` after its first use.
#[derive(Clone, Debug)]
pub enum InputSchema {
    Compiled(Arc<Schema>),
    /// The schema is unusable, with the reason in one line: arguments are sent unvalidated.
    Unusable(Arc<str>),
}

impl Input {
    /// Validation under a policy, with a schema that is not compiled yet.
    pub fn new(policy: InputPolicy) -> Self {
        Self { policy, ..Self::default() }
    }

    pub fn under(&self, policy: InputPolicy) -> Self {
        Self { policy, ..self.clone() }
    }

    /// A key of `arguments` that differs only by case from a property declared by `raw`, or a conflict of this kind
    /// that cannot be ruled out. `raw` is the schema of this validation.
    pub(crate) fn key_conflict(&self, raw: &[u8], arguments: &[u8]) -> Option<KeyConflict> {
        self.declared.get_or_init(|| DeclaredNames::of(raw)).conflict(raw, arguments)
    }

    /// The schema; `None` before its first use.
    pub fn schema(&self) -> Option<&InputSchema> {
        self.schema.get()
    }

    /// The schema, compiled by `compile` at first use, and whether this call compiled it. Concurrent callers block.
    pub fn compiled(&self, compile: impl FnOnce() -> InputSchema) -> (&InputSchema, bool) {
        let mut new = false;
        let schema = self.schema.get_or_init(|| {
            new = true;
            compile()
        });
        (schema, new)
    }
}

/// Dense id of a server, counted from 0 in the order in which names became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerId(u32);

impl ServerId {
    /// Index into a table by id.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Bytes of the name hash in file names.
const NAME_HASH_BYTES: usize = 16;

/// Stem of a server's file names: a hash, since a server may have any name.
pub fn server_file_stem(server: &str) -> String {
    let hash = blake3::hash(server.as_bytes()).to_hex();
    hash.get(..2 * NAME_HASH_BYTES).unwrap_or(&hash).to_owned()
}

/// All assigned ids, one per name in any config of this process.
#[derive(Debug, Default)]
pub struct ServerIds(HashMap<Arc<str>, ServerId>);

impl ServerIds {
    /// Id of a name, assigned at first use.
    pub fn assign(&mut self, name: &Arc<str>) -> ServerId {
        let next = ServerId(u32::try_from(self.0.len()).unwrap_or(u32::MAX));
        *self.0.entry(Arc::clone(name)).or_insert(next)
    }

    #[cfg(test)]
    pub(crate) fn get(&self, name: &str) -> Option<ServerId> {
        self.0.get(name).copied()
    }
}

const ANNOTATION: &str = "x-mcp-header";

/// Keywords other than `properties` whose value is an object of schemas.
const MAPS: [&str; 5] =
    ["$defs", "definitions", "patternProperties", "dependentSchemas", "dependencies"];

/// Mapping of headers to parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterHeaders {
    /// Full header names in lower case.
    headers: Box<[Box<str>]>,
    root: HeaderNode,
}

/// A location in the arguments and its header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct HeaderNode {
    header: Option<usize>,
    inside: BTreeMap<Box<str>, HeaderNode>,
}

/// Value of a parameter in the form in which a header repeats it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterValue<'a> {
    /// Encoding of the header value, which also determines the comparison.
    pub form: Form,
    /// Text that the header must encode.
    pub text: Cow<'a, str>,
}

/// Reason why the annotations of a schema, and therefore the tool, are invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidHeaderAnnotation {
    #[error("{ANNOTATION} cannot be read: {0}")]
    Unreadable(String),
    #[error(
        "{ANNOTATION} is allowed only on a property that is reached from the root through `properties` alone"
    )]
    Elsewhere,
    #[error("{ANNOTATION} must be a string that is valid in a header name")]
    NoToken,
    #[error("{ANNOTATION} {0} is on a parameter that is not an integer, string or boolean")]
    Type(Box<str>),
    #[error("{ANNOTATION} {0} occurs more than once")]
    Duplicate(Box<str>),
}

impl ParameterHeaders {
    /// Reads the annotations of an input schema; `None` if there are none. Fails at the first rule that an annotation breaks.
    pub fn read(input_schema: &RawValue) -> Result<Option<Self>, InvalidHeaderAnnotation> {
        let text = input_schema.get();
        // A key may be spelled with escapes.
        if !text.contains(ANNOTATION) && !text.contains(r"\u") {
            return Ok(None);
        }
        let schema: Value = serde_json::from_str(text)
            .map_err(|error| InvalidHeaderAnnotation::Unreadable(error.to_string()))?;
        let mut headers = Vec::new();
        let root = place(&schema, SchemaLocation::Root, &mut headers)?;
        let found = Self { headers: headers.into(), root };
        Ok((!found.headers.is_empty()).then_some(found))
    }

    /// Headers with the values that they must repeat from the arguments (raw JSON without duplicate keys). A value of `None` means that the
    /// header must not be sent.
    pub fn of<'a>(
        &'a self,
        arguments: &'a str,
    ) -> impl Iterator<Item = (&'a str, Option<ParameterValue<'a>>)> {
        let mut values = vec![None; self.headers.len()];
        self.root.find(arguments, &mut values);
        self.headers.iter().map(|header| &**header).zip(values)
    }
}

impl HeaderNode {
    fn find<'a>(&self, object: &'a str, values: &mut [Option<ParameterValue<'a>>]) {
        let Ok(members) = members(object) else { return };
        for (key, value) in members.map_while(Result::ok) {
            let Some(place) = self.inside.get(&*key) else { continue };
            if let Some(slot) = place.header.and_then(|at| values.get_mut(at)) {
                *slot = ParameterValue::read(value);
            }
            if !place.inside.is_empty() && value.starts_with('{') {
                place.find(value, values);
            }
        }
    }
}

impl<'a> ParameterValue<'a> {
    /// Reads a raw value; `None` for `null` and values that no header can carry.
    fn read(value: &'a str) -> Option<Self> {
        match value.as_bytes().first()? {
            b'"' => Some(Self { form: Form::Encodable, text: string(value)? }),
            b't' | b'f' => Some(Self { form: Form::Encodable, text: value.into() }),
            b'-' | b'0'..=b'9' => Some(Self { form: Form::Number, text: decimal(value) }),
            _ => None,
        }
    }
}

/// Location of a subschema.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SchemaLocation {
    Root,
    /// Reached from the root only through `properties`.
    Property,
    Elsewhere,
}

/// Reads a schema; its depth is bounded by serde_json.
fn place(
    schema: &Value,
    at: SchemaLocation,
    headers: &mut Vec<Box<str>>,
) -> Result<HeaderNode, InvalidHeaderAnnotation> {
    let mut place = HeaderNode::default();
    let Value::Object(schema) = schema else { return Ok(place) };
    if let Some(name) = schema.get(ANNOTATION) {
        if at != SchemaLocation::Property {
            return Err(InvalidHeaderAnnotation::Elsewhere);
        }
        let header = header(name, schema, headers)?;
        place.header = Some(headers.len());
        headers.push(header);
    }
    let inside = if at == SchemaLocation::Elsewhere {
        SchemaLocation::Elsewhere
    } else {
        SchemaLocation::Property
    };
    for (keyword, value) in schema {
        match (keyword.as_str(), value) {
            ("properties", Value::Object(properties)) => {
                for (name, property) in properties {
                    let found = self::place(property, inside, headers)?;
                    if found != HeaderNode::default() {
                        place.inside.insert(name.as_str().into(), found);
                    }
                }
            }
            (map, Value::Object(schemas)) if MAPS.contains(&map) => {
                elsewhere(schemas.values(), headers)?;
            }
            (keyword, Value::Array(schemas)) if SUBSCHEMA_KEYWORDS.contains(&keyword) => {
                elsewhere(schemas.iter(), headers)?;
            }
            (keyword, schema) if SUBSCHEMA_KEYWORDS.contains(&keyword) => {
                elsewhere(std::iter::once(schema), headers)?;
            }
            // Other members are not schemas; `$ref` is not followed.
            _ => {}
        }
    }
    Ok(place)
}

fn elsewhere<'a>(
    mut schemas: impl Iterator<Item = &'a Value>,
    headers: &mut Vec<Box<str>>,
) -> Result<(), InvalidHeaderAnnotation> {
    schemas.try_for_each(|schema| place(schema, SchemaLocation::Elsewhere, headers).map(|_| ()))
}

/// Header named by a property's annotation.
fn header(
    name: &Value,
    property: &Map<String, Value>,
    taken: &[Box<str>],
) -> Result<Box<str>, InvalidHeaderAnnotation> {
    let name = name.as_str().ok_or(InvalidHeaderAnnotation::NoToken)?;
    let in_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(in_token) {
        return Err(InvalidHeaderAnnotation::NoToken);
    }
    let kind = property.get("type").and_then(Value::as_str);
    if !matches!(kind, Some("integer" | "string" | "boolean")) {
        return Err(InvalidHeaderAnnotation::Type(name.into()));
    }
    let header = format!("{PARAM_PREFIX}{}", name.to_ascii_lowercase()).into_boxed_str();
    if taken.contains(&header) {
        return Err(InvalidHeaderAnnotation::Duplicate(name.into()));
    }
    Ok(header)
}

/// Minimum of `bytes` unless it is 0: the replacement for a longer result is nearly as large.
pub const MIN_LIMIT_BYTES: u64 = 4096;
pub(crate) const DEFAULT_KEEP: Duration = Duration::from_secs(15 * 60);
const MAX_KEEP: Duration = Duration::from_secs(24 * 3600);

/// Maximum size of a result that is sent whole, and the time for which the rest is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultLimit {
    /// Maximum size of a `result` that is sent whole, in bytes; 0 for unlimited.
    pub bytes: u64,
    /// Retention period of a longer result, which can be read by its handle.
    pub keep: Duration,
}

impl Default for ResultLimit {
    fn default() -> Self {
        Self { bytes: 0, keep: DEFAULT_KEEP }
    }
}

impl ResultLimit {
    /// Returns the limit; `None` if unlimited.
    pub fn limits(self) -> Option<Self> {
        (self.bytes > 0).then_some(self)
    }
}

/// Reads `bytes`: 0, or at least [`MIN_LIMIT_BYTES`].
pub fn limit_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let bytes = u64::deserialize(deserializer)?;
    match (1..MIN_LIMIT_BYTES).contains(&bytes) {
        true => Err(de::Error::custom(format_args!(
            "must be 0, for no limit, or at least {MIN_LIMIT_BYTES}, is {bytes}"
        ))),
        false => Ok(bytes),
    }
}

/// Reads `keep`: a duration above zero, at most 24 hours.
pub fn keep_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    let duration = text.parse::<jiff::SignedDuration>().ok();
    let duration = duration.and_then(|duration| Duration::try_from(duration).ok());
    match duration.filter(|duration| !duration.is_zero()) {
        Some(duration) if duration <= MAX_KEEP => Ok(duration),
        Some(_) => Err(de::Error::custom("must be 24h at most")),
        None => Err(de::Error::custom(format_args!(
            "'{text}' is not a duration: write it like \"30s\" or \"15m\""
        ))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tool_name_is_split_at_the_first_colon() {
        let name = ToolName::parse("github:a:b").unwrap();
        assert_eq!((&*name.server, &*name.tool), ("github", "a:b"));
        for bad in ["", "x", ":x", "x:"] {
            assert_eq!(ToolName::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn name_keeps_its_unique_id() {
        let mut ids = ServerIds::default();
        let [a, b, c] = ["a", "b", "c"].map(Arc::<str>::from);
        let of_a = ids.assign(&a);
        let of_c = ids.assign(&c);
        // Another config: one server is removed, and one is added between the others.
        assert_eq!([&b, &c].map(|name| ids.assign(name).index()), [2, 1]);
        assert_eq!(
            (ids.assign(&a), ids.get("a")),
            (of_a, Some(of_a)),
            "a returning name keeps its id"
        );
        assert_ne!(of_a, of_c);
        assert_eq!(ids.get("d"), None);
    }

    fn read(schema: Value) -> Result<Option<ParameterHeaders>, InvalidHeaderAnnotation> {
        ParameterHeaders::read(&serde_json::value::to_raw_value(&schema).unwrap())
    }

    fn with(property: Value) -> Value {
        json!({"type": "object", "properties": {"p": property}})
    }

    fn values(
        parameter_headers: &ParameterHeaders,
        arguments: &str,
    ) -> Vec<(String, Option<(Form, String)>)> {
        let owned = |values: ParameterValue<'_>| (values.form, values.text.into_owned());
        parameter_headers
            .of(arguments)
            .map(|(header, it)| (header.to_owned(), it.map(owned)))
            .collect()
    }

    #[test]
    fn schema_without_annotations_has_no_headers() {
        for schema in [
            json!({}),
            json!({"description": "x-mcp-header"}),
            with(json!({"type": "string", "description": "\u{1}"})),
            // Property names and data that look like the annotation.
            with(json!({"properties": {"x-mcp-header": {"type": "string"}}})),
            with(json!({"default": {"x-mcp-header": "A"}, "enum": [{"x-mcp-header": "A"}]})),
        ] {
            assert_eq!(read(schema.clone()), Ok(None), "{schema}");
        }
    }

    #[test]
    fn mcp_2026_invalid_annotations_are_rejected_with_the_reason() {
        let note = json!({"type": "string", "x-mcp-header": "A"});
        for (schema, why) in [
            (with(json!({"type": "string", "x-mcp-header": ""})), "must be a string"),
            (with(json!({"type": "string", "x-mcp-header": 7})), "must be a string"),
            (with(json!({"type": "string", "x-mcp-header": "My Region"})), "must be a string"),
            (with(json!({"type": "string", "x-mcp-header": "a:b"})), "must be a string"),
            (with(json!({"type": "string", "x-mcp-header": "R\u{e9}gion"})), "must be a string"),
            (with(json!({"type": "string", "x-mcp-header": "a\r\nb"})), "must be a string"),
            (with(json!({"type": "number", "x-mcp-header": "A"})), "A is on a parameter"),
            (with(json!({"type": "object", "x-mcp-header": "A"})), "A is on a parameter"),
            (with(json!({"type": ["string", "null"], "x-mcp-header": "A"})), "A is on a parameter"),
            (with(json!({"x-mcp-header": "A"})), "A is on a parameter"),
            (json!({"x-mcp-header": "A", "type": "string"}), "is allowed only on"),
            (with(json!({"items": note})), "is allowed only on"),
            (with(json!({"anyOf": [{}, note]})), "is allowed only on"),
            (json!({"if": {"properties": {"p": note}}}), "is allowed only on"),
            (json!({"$defs": {"d": note}}), "is allowed only on"),
            (json!({"patternProperties": {"^p": note}}), "is allowed only on"),
            (
                json!({"properties": {"p": note, "q": {"properties": {"r":
                    {"type": "integer", "x-mcp-header": "a"}}}}}),
                "a occurs more than once",
            ),
        ] {
            let error = read(schema.clone()).expect_err(&schema.to_string()).to_string();
            assert!(error.contains(why), "{schema}: {error}");
        }
        let deep = format!("{}1{}", "{\"x-mcp-header\":".repeat(200), "}".repeat(200));
        let error = ParameterHeaders::read(&RawValue::from_string(deep).unwrap()).unwrap_err();
        assert!(error.to_string().contains("cannot be read"), "{error}");
    }

    #[test]
    fn mcp_2026_header_values_repeat_parameters() {
        let schema = r#"{"properties":{
            "region":{"type":"string","x-mcp\u002dheader":"Region"},
            "n":{"type":"integer","x-mcp-header":"N"},
            "in":{"properties":{"flag":{"type":"boolean","x-mcp-header":"In.Flag"}}},
            "free":{"type":"string"}}}"#;
        let parameter_headers =
            ParameterHeaders::read(&RawValue::from_string(schema.into()).unwrap());
        let parameter_headers = parameter_headers.unwrap().unwrap();
        let (name, number) = (Form::Encodable, Form::Number);
        for (arguments, region, n, flag) in [
            ("{}", None, None, None),
            (
                r#"{"region":"a","n":7,"in":{"flag":true},"free":"b"}"#,
                Some((name, "a")),
                Some((number, "7")),
                Some((name, "true")),
            ),
            (
                r#"{"r\u0065gion" : "\u00e9\n" , "n" : 42.0 , "in" : { "x" : [] , "flag" : false } }"#,
                Some((name, "é\n")),
                Some((number, "42")),
                Some((name, "false")),
            ),
            (r#"{"region":null,"n":null,"in":null}"#, None, None, None),
            (r#"{"region":{"a":1},"n":[7],"in":"flag"}"#, None, None, None),
            (r#"{"flag":true,"in":[{"flag":true}]}"#, None, None, None),
            (r#"{"region":"","n":-1e2}"#, Some((name, "")), Some((number, "-100")), None),
        ] {
            let found: BTreeMap<_, _> = values(&parameter_headers, arguments).into_iter().collect();
            let expected = [("region", region), ("n", n), ("in.flag", flag)];
            let expected: BTreeMap<_, _> = expected
                .map(|(header, it)| {
                    (format!("mcp-param-{header}"), it.map(|(form, text)| (form, text.to_owned())))
                })
                .into();
            assert_eq!(found, expected, "{arguments}");
        }
    }
}
