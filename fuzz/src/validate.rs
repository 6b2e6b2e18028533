//! Target `validate`: arbitrary schema × arbitrary document, the tape engine against boon.
//!
//! Input: a line with the schema, then the document, both verbatim; or `~` and bytes from which `arbitrary` generates a
//! schema and a document that share names and numbers. Schemas that do not compile and invalid JSON are skipped. A
//! disagreement of the engines is a finding, except for two calculations in which boon differs, which this target
//! detects. A generated schema whose meaning changes with an additional definition that nothing refers to is a finding,
//! too.

use arbitrary::{Result, Unstructured};
use bytes::Bytes;
use mcpproxy_schema::compile::{Engine, Settings, compile};
use mcpproxy_schema::judge::{JudgeScratch, Judgment, Verdict};
use serde_json::Value;

use super::grow::Grow;

pub fn run(data: &[u8]) {
    if let Some(bytes) = data.strip_prefix(b"~") {
        let mut grow = Grow::new(Unstructured::new(bytes));
        if let Ok([schema, document]) = pair(&mut grow) {
            compare(schema.as_bytes(), document.as_bytes());
            extend(&schema, document.as_bytes());
        }
        return;
    }
    let Some(end) = data.iter().position(|byte| *byte == b'\n') else { return };
    compare(&data[..end], &data[end + 1..]);
}

fn pair(grow: &mut Grow<'_>) -> Result<[String; 2]> {
    Ok([grow.schema()?, grow.document()?])
}

/// Definitions that no engine can compile: they contain a pattern with look-around, and references to missing schemas.
const UNREACHED: &str = "\"$defs\":{\"Un|reached\":{\"pattern\":\"(?!x)(a)\\\\1\",\
    \"items\":{\"$ref\":\"http://nowhere.invalid/\"},\"not\":{\"$ref\":\"#/absent\"}},";

/// Asserts that a definition without references to it changes neither whether the schema is usable nor a verdict.
fn extend(raw: &str, document: &[u8]) {
    let settings = Settings { engine: Engine::Tape, assert_formats: false };
    let Ok(schema) = compile(raw.as_bytes(), &settings) else { return };
    let extended = raw.replacen("\"$defs\":{", UNREACHED, 1);
    assert_ne!(raw, extended, "a grown schema has definitions");
    let extended = match compile(extended.as_bytes(), &settings) {
        Ok(extended) => extended,
        Err(reason) => panic!("unusable with an additional definition: {reason}"),
    };
    assert_eq!(schema.judged_by_tape_alone(), extended.judged_by_tape_alone());
    let document = [Bytes::copy_from_slice(document)];
    let mut scratch = JudgeScratch::new();
    let [plain, more] = [&schema, &extended].map(|schema| schema.judge(&document, &mut scratch));
    assert_eq!(kind(&plain), kind(&more), "an additional definition changes the verdict");
}

fn compare(raw: &[u8], document: &[u8]) {
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
    let mut scratch = JudgeScratch::new();
    let judgment = schema.judge(&whole, &mut scratch);
    let again = schema.judge(&halves, &mut scratch);
    assert_eq!(kind(&judgment), kind(&again), "slicing changes the verdict");
    let fresh = schema.judge(&whole, &mut JudgeScratch::new());
    assert_eq!(kind(&judgment), kind(&fresh), "scratch changes it");
    let arbitrated = arbiter.judge(&whole, &mut scratch);
    if let Verdict::Violates(violation) = &judgment.verdict {
        assert!(violation.for_agent().len() <= 500 && !violation.for_agent().is_empty());
    }
    let parsed = |json| serde_json::from_slice::<Value>(json);
    let (Ok(schema), Ok(document)) = (parsed(raw), parsed(document)) else {
        return assert_eq!(judgment.verdict, arbitrated.verdict, "a document that is none");
    };
    if divides_differently(&schema, &document) {
        return;
    }
    assert_eq!(
        judgment.verdict == Verdict::Conforms,
        arbitrated.verdict == Verdict::Conforms,
        "the engine setting changes the verdict"
    );
    assert!(
        !judgment.disagreement && !arbitrated.disagreement || repeats_zero(&schema, &document),
        "the engines disagree"
    );
}

/// A verdict without its text, because boon lists violations in random order.
fn kind(judgment: &Judgment) -> (Option<&'static str>, bool) {
    let code = match &judgment.verdict {
        Verdict::Conforms => None,
        Verdict::Violates(violation) => Some(violation.reason.code()),
    };
    (code, judgment.disagreement)
}

/// True if a `multipleOf` applies to a number for which boon's calculation with doubles differs from that with
/// decimals. In decimals only, 0.07 is a multiple of 0.01; in doubles only, 5e-324 is one of 1e19.
fn divides_differently(schema: &Value, document: &Value) -> bool {
    let mut divisors = Vec::new();
    visit(schema, &mut |value| {
        let divisor = value.get("multipleOf").and_then(Value::as_f64);
        divisors.extend(divisor.filter(|divisor| *divisor > 0.0));
    });
    let mut found = false;
    visit(document, &mut |value| {
        if let Some(number) = value.as_f64() {
            found |= divisors
                .iter()
                .any(|divisor| ((number / divisor).fract() == 0.0) != divides(number, *divisor));
        }
    });
    found
}

/// Whether `number` is a multiple of `divisor`, calculated with their decimal notation.
fn divides(number: f64, divisor: f64) -> bool {
    let ((number, tens), (divisor, fewer)) = (decimal(number), decimal(divisor));
    let (mut rest, mut divisor) = (number % divisor, divisor);
    if number == 0 {
        return true;
    }
    for _ in 0..tens - fewer {
        rest = rest * 10 % divisor;
    }
    for _ in 0..fewer - tens {
        // On overflow the divisor is so large that only zero would be a multiple of it.
        let Some(larger) = divisor.checked_mul(10) else { return false };
        divisor = larger;
        rest = number % divisor;
    }
    rest == 0
}

/// A double as its shortest decimal: its digits, and the power of ten by which they are multiplied.
fn decimal(double: f64) -> (u128, i32) {
    let text = format!("{:e}", double.abs());
    let (digits, exponent) = text.split_once('e').expect("an exponent");
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let mantissa = format!("{whole}{fraction}").parse().expect("at most 17 digits");
    (mantissa, exponent.parse::<i32>().expect("a number") - fraction.len() as i32)
}

/// True if `uniqueItems` may apply to more than twenty items with both zeros among them: boon then hashes 0 and -0
/// differently.
fn repeats_zero(schema: &Value, document: &Value) -> bool {
    let (mut asked, mut long, mut negative) = (false, false, false);
    visit(schema, &mut |value| asked |= value.get("uniqueItems") == Some(&Value::Bool(true)));
    visit(document, &mut |value| {
        long |= value.as_array().is_some_and(|items| items.len() > 20);
        negative |= value.as_f64().is_some_and(|number| number == 0.0 && number.is_sign_negative());
    });
    asked && long && negative
}

fn visit(value: &Value, look: &mut impl FnMut(&Value)) {
    look(value);
    match value {
        Value::Array(items) => items.iter().for_each(|item| visit(item, look)),
        Value::Object(members) => members.values().for_each(|member| visit(member, look)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
