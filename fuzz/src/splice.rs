//! Target `splice`: what goes out parses to what came in, and `result` is the same bytes, but for
//! what the asker's revision requires of it and it does not say.
//!
//! Input: structured. A byte of switches, a byte that decides the cuts, a byte for each bound,
//! then the server's message: as it is, or grown by `arbitrary` out of the bytes, which makes
//! valid answers only.

use std::io::IoSlice;

use arbitrary::{Arbitrary, Result, Unstructured};
use bytes::{Buf, Bytes};
use mcpproxy::json::scan;
use mcpproxy::mcp::jsonrpc;
use mcpproxy::output::{
    AnswerFault, AnswerMember, Finding, InspectedMessage, Inspector, MissingContent, Mode, Policy,
    Required, Treatment,
};
use mcpproxy::wire::splice::Splice;

use super::{
    envelope::Members,
    scan::{Cutter, bound},
};

/// The id that the server was asked under, as it is written.
const ASKED: &str = "7";
/// The same as a number.
const ASKED_ID: u64 = 7;
/// Ids that clients use.
const IDS: [&str; 4] = ["1", "-9007199254740993", r#""a""#, r#""\"result\":\u0031""#];
/// Levels past which a grown value no longer nests.
const MAX_NESTING: u32 = 40;

/// The fuzz target.
pub fn run(data: &[u8]) {
    let [switches, cuts, max_bytes, max_depth, message @ ..] = data else { return };
    let treatments = [Treatment::Forward, Treatment::ForwardAndJudge, Treatment::Hold];
    let treatment = treatments[usize::from(switches % 3)];
    let requirements =
        [Required::Nothing, Required::Type, Required::TypeAndCaching, Required::TypeAndCaching];
    let required = requirements[usize::from(switches >> 2 & 3)];
    let policy = Policy {
        mode: Mode::Strict,
        max_bytes: bound(*max_bytes),
        max_depth: bound(*max_depth) as u32,
        ..Policy::default()
    };
    let grown = switches & 0x10 != 0;
    let message = if grown { answer(message) } else { message.to_vec() };
    let mut cutter = Cutter(u64::from(*cuts));
    let mut inspector = Inspector::new(treatment, &policy, ASKED_ID, 1);
    if switches & 0x20 != 0 {
        for before in [r#"{"method":"n","params":{"id":7}}"#, r#"{"id":8,"result":{"a":1}}"#] {
            let (ended, body) = feed(&mut inspector, required, before.as_bytes(), &mut cutter);
            assert!(
                matches!(ended, Ok(InspectedMessage::Notification(_) | InspectedMessage::Foreign)),
                "{ended:?}"
            );
            assert!(body.is_empty());
        }
    }
    let (ended, body) = feed(&mut inspector, required, &message, &mut cutter);
    let Ok(members) = serde_json::from_slice::<Members<'_>>(&message) else {
        assert!(!grown, "grown: {}", String::from_utf8_lossy(&message));
        return;
    };
    let ours = members.get("id").is_some_and(|id| id.get() == ASKED);
    let member = match ended {
        Ok(InspectedMessage::Answer(member)) => member,
        Ok(InspectedMessage::Notification(parts)) => {
            assert!(members.count("method") == 1 && body.is_empty());
            return assert_eq!(parts.concat(), message);
        }
        Ok(InspectedMessage::Foreign) => return assert!(!ours && body.is_empty()),
        Err(AnswerFault::ForeignId) => return assert!(!ours),
        Err(AnswerFault::Empty) => {
            let count = |name| members.count(name);
            return assert_eq!(count("result") + count("error") + count("method"), 0);
        }
        // Target `envelope` sees to it that these are what they say.
        Err(AnswerFault::Malformed(error)) => {
            return assert!(
                matches!(
                    error.fault,
                    scan::ScanFault::Duplicate(_)
                        | scan::ScanFault::Conflict
                        | scan::ScanFault::WrongType(_)
                ),
                "{error:?}"
            );
        }
        Err(AnswerFault::EnvelopeTooLong) => panic!("so short a message"),
    };
    assert!(ours, "an answer to another id");
    let name = if member == AnswerMember::Result { "result" } else { "error" };
    let original = members.get(name).expect("what the answer is").get();

    let id = IDS[usize::from(switches >> 6)];
    let reply = spliced(id, member, body, &mut cutter);
    let reply: Members<'_> = serde_json::from_slice(&reply).expect("what goes out parses");
    let names: Vec<_> = reply.0.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["jsonrpc", "id", name]);
    assert_eq!(reply.get("id").map(|id| id.get()), Some(id));
    let sent = reply.get(name).map(|body| body.get()).expect("it is there");
    match added(original, member, required) {
        Some(added) => {
            let kept = original.strip_suffix('}').filter(|_| !added.is_empty());
            let expected = kept.map(|kept| format!("{kept}{added}}}"));
            assert_eq!(sent, expected.as_deref().unwrap_or(original), "the same bytes");
        }
        // A key that serde_json does not decode, a lone surrogate: what there is, is not known.
        None => assert!(sent.starts_with(original.strip_suffix('}').expect("an object"))),
    }

    // What is judged is what goes out.
    if member == AnswerMember::Result
        && inspector.finding(MissingContent::Allow) == Finding::AskTheSchema
    {
        let result: Members<'_> = serde_json::from_str(original).expect("it has a member");
        let judged = result.get("structuredContent").expect("what is judged").get();
        assert_eq!(result.count("structuredContent"), 1);
        assert_eq!(inspector.document().concat(), judged.as_bytes());
    }
}

/// Feeds a message in pieces and ends it; gives the slices that go on.
fn feed(
    inspector: &mut Inspector,
    required: Required,
    message: &[u8],
    cutter: &mut Cutter,
) -> (std::result::Result<InspectedMessage, AnswerFault>, Splice) {
    let (mut body, mut rest) = (Splice::new(), Bytes::copy_from_slice(message));
    while !rest.is_empty() {
        let chunk = rest.split_to(cutter.len(rest.len()));
        match inspector.feed(&chunk) {
            Ok(slice) if slice.is_empty() => {}
            Ok(slice) => match inspector.ending(required) {
                None => body.push(slice),
                Some(ending) => body.push_ending(slice, ending),
            },
            Err(fault) => return (Err(fault), body),
        }
    }
    (inspector.end(), body)
}

/// What is to be added before the last brace of `original`; `None` if its members cannot be read.
fn added(original: &str, member: AnswerMember, required: Required) -> Option<String> {
    if member == AnswerMember::Error || required == Required::Nothing || !original.starts_with('{')
    {
        return Some(String::new());
    }
    let members = serde_json::from_str::<Members<'_>>(original).ok()?;
    let lacks = |name: &str| members.count(name) == 0;
    if !lacks("resultType") {
        return Some(String::new());
    }
    let mut added = vec![r#""resultType":"complete""#];
    if required == Required::TypeAndCaching {
        added.extend(lacks("ttlMs").then_some(r#""ttlMs":0"#));
        added.extend(lacks("cacheScope").then_some(r#""cacheScope":"private""#));
    }
    let comma = if members.0.is_empty() { "" } else { "," };
    Some(format!("{comma}{}", added.join(",")))
}

/// Our envelope around the slices, read off in every way that a buffer can be read.
fn spliced(id: &str, member: AnswerMember, mut body: Splice, cutter: &mut Cutter) -> Vec<u8> {
    body.push_front(match member {
        AnswerMember::Result => jsonrpc::result_head(id.as_bytes()),
        AnswerMember::Error => jsonrpc::error_head(id.as_bytes()),
    });
    body.push(jsonrpc::TAIL);
    let whole = body.parts().flatten().copied().collect::<Vec<u8>>();
    let mut slots = [IoSlice::new(&[]); 64];
    let filled = body.chunks_vectored(&mut slots);
    let vectored =
        slots[..filled].iter().flat_map(|slot| slot.iter().copied()).collect::<Vec<u8>>();
    assert!(whole.starts_with(&vectored) && (filled == slots.len() || vectored == whole));

    let mut read = Vec::new();
    while body.has_remaining() {
        assert_eq!(body.len() + read.len(), whole.len());
        let count = cutter.len(body.remaining());
        if cutter.next().is_multiple_of(2) {
            read.extend(body.copy_to_bytes(count));
        } else {
            let count = count.min(body.chunk().len());
            read.extend_from_slice(&body.chunk()[..count]);
            body.advance(count);
        }
    }
    assert_eq!(read, whole);
    whole
}

/// A valid answer with whatever the bytes decide: order, white space, spelling, values.
fn answer(bytes: &[u8]) -> Vec<u8> {
    let mut grow = Grow { from: Unstructured::new(bytes), text: Vec::new() };
    // Out of bytes, `arbitrary` gives zeros and so the plainest answer: an error is not possible
    // in what is used of it, and an unfinished text would be found by who parses it.
    let _ = grow.answer();
    grow.text
}

struct Grow<'a> {
    from: Unstructured<'a>,
    text: Vec<u8>,
}

impl Grow<'_> {
    fn answer(&mut self) -> Result<()> {
        let mut members = ["jsonrpc", "id", "body", "extra"];
        for at in (1..members.len()).rev() {
            members.swap(at, self.from.int_in_range(0..=at)?);
        }
        self.space()?;
        self.text.push(b'{');
        for (at, member) in members.into_iter().enumerate() {
            if at > 0 {
                self.text.push(b',');
            }
            let spellings: &[&str] = match member {
                "jsonrpc" => &["\"jsonrpc\"", r#""json\u0072pc""#],
                "id" => &["\"id\"", r#""\u0069d""#],
                "body" => &["\"result\"", r#""re\u0073ult""#, "\"error\""],
                _ => &["\"x\"", "\"Result\"", r#""result\\""#],
            };
            let name = *self.from.choose(spellings)?;
            self.token(name)?;
            self.token(":")?;
            match member {
                "jsonrpc" => self.token("\"2.0\"")?,
                "id" => self.token(ASKED)?,
                "body" => self.result()?,
                _ => self.value(0)?,
            }
        }
        self.token("}")
    }

    fn result(&mut self) -> Result<()> {
        const NAMES: [&str; 7] = [
            "structuredContent",
            "content",
            "_meta",
            "isError",
            "result\\u0054ype",
            "ttlMs",
            "cacheScope",
        ];
        self.token("{")?;
        let count = self.from.int_in_range(0..=NAMES.len())?;
        for (at, name) in NAMES.into_iter().take(count).enumerate() {
            if at > 0 {
                self.token(",")?;
            }
            // Sometimes under another name.
            let other = self.from.ratio(1u8, 4u8)?;
            self.token(&if other { format!("\"{at}\"") } else { format!("\"{name}\"") })?;
            self.token(":")?;
            if name == "isError" && !other {
                let word = if bool::arbitrary(&mut self.from)? { "true" } else { "false" };
                self.token(word)?;
            } else {
                self.value(0)?;
            }
        }
        self.token("}")
    }

    fn value(&mut self, depth: u32) -> Result<()> {
        const SCALARS: [&str; 10] = [
            "0",
            "null",
            "true",
            "-1.50E+7",
            "18446744073709551616",
            r#""\\\"}]""#,
            r#""\ud83d\ude00\/é𝄞""#,
            r#""{\"jsonrpc\":\"2.0\",\"id\":8}""#,
            "\"\"",
            "1e-7",
        ];
        let pick = self.from.int_in_range(0..=13u8)?;
        match pick {
            10 | 11 if depth < MAX_NESTING => {
                let (open, close) = if pick == 10 { ("[", "]") } else { ("{", "}") };
                self.token(open)?;
                let count = self.from.int_in_range(0..=3u8)?;
                for at in 0..count {
                    if at > 0 {
                        self.token(",")?;
                    }
                    if pick == 11 {
                        self.token(&format!("\"result{at}\""))?;
                        self.token(":")?;
                    }
                    self.value(depth + 1)?;
                }
                self.token(close)
            }
            12 | 13 => {
                let text = String::arbitrary(&mut self.from)?;
                self.token(&serde_json::to_string(&text).expect("a text"))
            }
            other => self.token(SCALARS[usize::from(other) % SCALARS.len()]),
        }
    }

    /// A token and the white space after it.
    fn token(&mut self, token: &str) -> Result<()> {
        self.text.extend(token.bytes());
        self.space()
    }

    fn space(&mut self) -> Result<()> {
        let space = *self.from.choose(&["", "", "", " ", "\r\n\t", "                "])?;
        self.text.extend(space.bytes());
        Ok(())
    }
}
