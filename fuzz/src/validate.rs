//! Target `validate`: arbitrary schema × arbitrary document, the tape engine against boon.
//!
//! Input: a line with the schema, then the document. Both are mostly near-JSON after a few
//! mutations of the seeds; what does not compile or is not JSON is not interesting. A disagreement
//! is a find, except where the engines are known to count numbers differently.

use bytes::Bytes;
use mcpproxy::schema::compile::{Engine, Settings, compile};
use mcpproxy::schema::judge::{Scratch, Verdict};

/// The fuzz target.
pub fn run(data: &[u8]) {
    let Some(end) = data.iter().position(|byte| *byte == b'\n') else { return };
    let (raw, document) = (&data[..end], &data[end + 1..]);
    let tape_first = Settings { engine: Engine::Tape, assert_formats: false };
    let Ok(schema) = compile(raw, &tape_first) else { return };
    let boon_always = Settings { engine: Engine::Boon, assert_formats: false };
    let Ok(arbiter) = compile(raw, &boon_always) else {
        panic!("one engine setting compiles it, the other does not")
    };
    let whole = [Bytes::copy_from_slice(document)];
    let cut = document.len() / 2;
    let halves =
        [Bytes::copy_from_slice(&document[..cut]), Bytes::copy_from_slice(&document[cut..])];
    let mut scratch = Scratch::new();
    let judgement = schema.judge(&whole, &mut scratch);
    assert_eq!(judgement, schema.judge(&halves, &mut scratch), "slicing changes the judgement");
    assert_eq!(judgement, schema.judge(&whole, &mut Scratch::new()), "scratch changes it");
    let arbitrated = arbiter.judge(&whole, &mut scratch);
    if let Verdict::Violates(violation) = &judgement.verdict {
        assert!(violation.for_agent().len() <= 500 && !violation.for_agent().is_empty());
    }
    if !counts(raw, document) {
        assert!(!judgement.disagreement && !arbitrated.disagreement, "the engines disagree");
        assert_eq!(
            judgement.verdict == Verdict::Conforms,
            arbitrated.verdict == Verdict::Conforms,
            "the engine setting changes the verdict"
        );
    }
}

/// Schemas with keywords for which boon calculates in doubles, and the tape engine does not; and
/// those whose references go in circles, which only boon refuses.
fn counts(schema: &[u8], document: &[u8]) -> bool {
    let text = String::from_utf8_lossy(schema);
    let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
    // boon also compares as doubles; a number that is none has at least 16 digits.
    let long = |text: &[u8]| text.split(|byte| !byte.is_ascii_digit()).any(|run| run.len() >= 16);
    has(&["multipleOf", "inimum", "aximum", "Ref", "$ref", "\\u", "uniqueItems"])
        || has(&["const", "enum"]) && (long(schema) || long(document))
}
