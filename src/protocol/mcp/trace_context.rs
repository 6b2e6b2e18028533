//! Trace context of a request, from headers (W3C Trace Context) and `_meta` (SEP-414). Pure.
//!
//! An invalid context counts as absent and never causes a refusal. `baggage` (W3C Baggage) is forwarded unread.

use http::HeaderMap;

use mcpproxy_json::members::{member, members, string};

/// Header and key of `_meta` with trace and span.
pub const PARENT: &str = "traceparent";
/// Header and key of `_meta` with vendor data.
pub const STATE: &str = "tracestate";
/// Header and key of `_meta` with application data.
pub const BAGGAGE: &str = "baggage";
/// Maximum size of a `baggage` in bytes; a longer one is dropped (W3C Baggage §3.3.2 requires at least this).
pub(crate) const MAX_BAGGAGE_BYTES: usize = 8192;
/// Maximum size of a `tracestate` in bytes; a longer one is dropped (W3C Trace Context §3.3.1.5 requires at least 512).
pub(crate) const MAX_STATE_BYTES: usize = 512;
/// Length of a `traceparent` of version 00, in bytes.
const PARENT_BYTES: usize = 55;
/// Flag bit of a sampled trace.
const SAMPLED: u8 = 1;

/// Span, and whether its trace is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    pub trace_id: u128,
    pub span_id: u64,
    /// Whether the originator of the trace samples it.
    pub sampled: bool,
}

/// Trace context between two hops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PropagatedContext {
    pub context: TraceContext,
    /// Vendor data: printable ASCII, at most [`MAX_STATE_BYTES`].
    pub state: Option<Box<str>>,
    /// Application data: printable ASCII, at most [`MAX_BAGGAGE_BYTES`].
    pub baggage: Option<Box<str>>,
}

/// Trace context in the `_meta` of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetaContext {
    pub context: Option<PropagatedContext>,
    /// Baggage, which may be present without a trace.
    pub baggage: Option<Box<str>>,
}

impl TraceContext {
    /// Parses a `traceparent` of version 00, or the part of a later version that version 00 defines (W3C Trace Context §3.2.4). `None` if
    /// it is invalid.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let (version, rest) = hex(text, 2)?;
        let (trace_id, rest) = hex(rest.strip_prefix(b"-")?, 32)?;
        let (span_id, rest) = hex(rest.strip_prefix(b"-")?, 16)?;
        let (flags, rest) = hex(rest.strip_prefix(b"-")?, 2)?;
        let ends = match version {
            0 => rest.is_empty(),
            0xff => false,
            _ => rest.is_empty() || rest.starts_with(b"-"),
        };
        let (span_id, flags) = (u64::try_from(span_id).ok()?, u8::try_from(flags).ok()?);
        let valid = ends && trace_id != 0 && span_id != 0;
        valid.then_some(Self { trace_id, span_id, sampled: flags & SAMPLED != 0 })
    }

    /// Formats a `traceparent` of version 00.
    pub fn write(self, out: &mut Vec<u8>) {
        out.reserve(PARENT_BYTES);
        out.extend_from_slice(b"00-");
        push_hex(out, &self.trace_id.to_be_bytes());
        out.push(b'-');
        push_hex(out, &self.span_id.to_be_bytes());
        out.extend_from_slice(if self.sampled { b"-01" } else { b"-00" });
    }
}

impl PropagatedContext {
    /// Creates the context from its parts. Without a valid `traceparent`, `tracestate` is dropped.
    pub fn new(parent: &[u8], state: Option<&[u8]>) -> Option<Self> {
        let context = TraceContext::parse(parent)?;
        Some(Self { context, state: state.and_then(|it| line(it, MAX_STATE_BYTES)), baggage: None })
    }

    /// Context of a request's headers. Several `tracestate` lines form one list, as do several `baggage` lines; several `traceparent` lines
    /// are invalid.
    pub fn of_headers(headers: &HeaderMap) -> Option<Self> {
        let mut parents = headers.get_all(PARENT).iter();
        let (parent, None) = (parents.next()?, parents.next()) else { return None };
        let parsed = Self::new(parent.as_bytes(), list(headers, STATE).as_deref())?;
        let baggage = list(headers, BAGGAGE).and_then(|it| line(&it, MAX_BAGGAGE_BYTES));
        Some(Self { baggage, ..parsed })
    }
}

impl MetaContext {
    /// Context of a `_meta` (SEP-414).
    pub fn of(meta: &[u8]) -> Self {
        Self::read(meta).unwrap_or_default()
    }

    fn read(meta: &[u8]) -> Option<Self> {
        let (mut parent, mut state, mut baggage) = (None, None, None);
        for member in members(std::str::from_utf8(meta).ok()?).ok()? {
            let (key, value) = member.ok()?;
            match &*key {
                PARENT => parent = string(value),
                STATE => state = string(value),
                BAGGAGE => baggage = string(value),
                _ => {}
            }
        }
        let state = state.as_ref().map(|state| state.as_bytes());
        let context = parent.and_then(|it| PropagatedContext::new(it.as_bytes(), state));
        let baggage = baggage.and_then(|it| line(it.as_bytes(), MAX_BAGGAGE_BYTES));
        Some(Self { context, baggage })
    }
}

/// Raw `_meta` of a request's `params`.
pub fn meta_of(params: &[u8]) -> Option<&[u8]> {
    member(std::str::from_utf8(params).ok()?, "_meta").map(str::as_bytes)
}

/// All lines of a header as one list.
fn list(headers: &HeaderMap, name: &str) -> Option<Vec<u8>> {
    let lines: Vec<&[u8]> = headers.get_all(name).iter().map(|line| line.as_bytes()).collect();
    (!lines.is_empty()).then(|| lines.join(&b','))
}

/// Returns the text if it fits a header line and the maximum size.
fn line(text: &[u8], max: usize) -> Option<Box<str>> {
    let text = std::str::from_utf8(text).ok()?.trim_ascii();
    let printable = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    (!text.is_empty() && text.len() <= max && printable).then(|| text.into())
}

/// Splits a number of the given count of lowercase hexadecimal digits from the rest.
fn hex(text: &[u8], digits: usize) -> Option<(u128, &[u8])> {
    let (number, rest) = text.split_at_checked(digits)?;
    let mut value = 0;
    for digit in number {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        value = value << 4 | u128::from(digit);
    }
    Some((value, rest))
}

fn push_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    let digit = |nibble: u8| nibble + if nibble < 10 { b'0' } else { b'a' - 10 };
    out.extend(bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]));
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    const PARENT_TEXT: &str = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01";
    const CONTEXT: TraceContext = TraceContext {
        trace_id: 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c,
        span_id: 0x00f0_67aa_0ba9_02b7,
        sampled: true,
    };

    #[test]
    fn traceparent_round_trips_as_w3c_defines_it() {
        assert_eq!(TraceContext::parse(PARENT_TEXT.as_bytes()), Some(CONTEXT));
        let unsampled = PARENT_TEXT.replace("-01", "-00");
        let read = TraceContext::parse(unsampled.as_bytes());
        assert_eq!(read, Some(TraceContext { sampled: false, ..CONTEXT }));
        // Flags and versions that are defined later.
        for later in [
            PARENT_TEXT.replace("-01", "-ff"),
            PARENT_TEXT.replacen("00-", "cc-", 1),
            format!("{}-what-may-come", PARENT_TEXT.replacen("00-", "cc-", 1)),
        ] {
            assert_eq!(TraceContext::parse(later.as_bytes()), Some(CONTEXT), "{later}");
        }
    }

    #[test]
    fn invalid_traceparent_counts_as_absent() {
        for bad in [
            String::new(),
            PARENT_TEXT.to_uppercase(),
            format!("{PARENT_TEXT}-"),
            format!("{PARENT_TEXT} "),
            format!(" {PARENT_TEXT}"),
            PARENT_TEXT.replacen("00-", "ff-", 1),
            format!("{}x", PARENT_TEXT.replacen("00-", "cc-", 1)),
            PARENT_TEXT.replace('-', "_"),
            PARENT_TEXT[..54].to_owned(),
            PARENT_TEXT.replace("00f067aa0ba902b7", "0000000000000000"),
            PARENT_TEXT.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            "x".repeat(1_000_000),
        ] {
            assert_eq!(TraceContext::parse(bad.as_bytes()), None, "{bad:.80}");
        }
    }

    #[test]
    fn headers_must_have_one_traceparent_and_other_lines_are_joined() {
        let of = |lines: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in lines {
                headers.append(*name, HeaderValue::from_static(value));
            }
            PropagatedContext::of_headers(&headers)
        };
        let parent = ("traceparent", PARENT_TEXT);
        let with = |state: Option<&str>| {
            Some(PropagatedContext { context: CONTEXT, state: state.map(Box::from), baggage: None })
        };
        assert_eq!(of(&[parent]), with(None));
        assert_eq!(
            of(&[parent, ("tracestate", "a=1"), ("tracestate", "b=2")]),
            with(Some("a=1,b=2"))
        );
        let with_baggage = of(&[parent, ("baggage", "a=1;p"), ("baggage", "b=%20")]).unwrap();
        assert_eq!(with_baggage.baggage.as_deref(), Some("a=1;p,b=%20"));
        assert_eq!(of(&[parent, parent]), None);
        assert_eq!(of(&[("tracestate", "a=1")]), None, "a state without a parent");
        assert_eq!(of(&[("traceparent", "00-1"), ("tracestate", "a=1")]), None);
    }

    #[test]
    fn sep_414_meta_equals_headers_and_drops_line_ends() {
        let of = |meta: &str| MetaContext::of(meta.as_bytes()).context;
        let state = |state: &str| {
            let state = serde_json::to_string(state).unwrap();
            let meta = format!(r#"{{"k":1,"tracestate":{state},"traceparent":"{PARENT_TEXT}"}}"#);
            of(&meta).unwrap().state
        };
        assert_eq!(state("rojo=00f067aa0ba902b7").as_deref(), Some("rojo=00f067aa0ba902b7"));
        for bad in ["a=1\r\nx-evil: 1", "a=é", "", "  ", &"a".repeat(MAX_STATE_BYTES + 1)] {
            assert_eq!(state(bad), None, "{bad:.40}");
        }
        let escaped = PARENT_TEXT.replace("-01", r"\u002d01");
        assert_eq!(of(&format!(r#"{{"traceparent":"{escaped}"}}"#)).unwrap().context, CONTEXT);
        for none in ["{}", r#"{"traceparent":7}"#, r#"{"traceparent":["00"]}"#, "[]", "{", ""] {
            assert_eq!(of(none), None, "{none}");
        }
        let baggage = |text: &str| {
            let text = serde_json::to_string(text).unwrap();
            MetaContext::of(format!(r#"{{"baggage":{text}}}"#).as_bytes()).baggage
        };
        assert_eq!(baggage("user=ann;x, k=v").as_deref(), Some("user=ann;x, k=v"));
        let max = "b".repeat(MAX_BAGGAGE_BYTES);
        assert_eq!(baggage(&max).as_deref(), Some(&*max));
        for bad in ["a=1\r\nx-evil: 1", "a=é", "", &format!("{max}b")] {
            assert_eq!(baggage(bad), None, "{bad:.40}");
        }
        let params = br#"{"uri":"x","_meta":{"a":1}}"#;
        assert_eq!(meta_of(params), Some(&br#"{"a":1}"#[..]));
        assert_eq!(meta_of(b"{}"), None);
    }

    proptest! {
        #[test]
        fn formatted_traceparent_parses_to_the_same_value(trace_id in 1_u128.., span_id in 1_u64.., sampled: bool) {
            let context = TraceContext { trace_id, span_id, sampled };
            let mut text = Vec::new();
            context.write(&mut text);
            prop_assert_eq!(text.len(), PARENT_BYTES);
            prop_assert_eq!(TraceContext::parse(&text), Some(context));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>) {
            let _ = TraceContext::parse(&bytes);
            let _ = MetaContext::of(&bytes);
        }
    }
}
