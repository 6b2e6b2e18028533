//! Inspecting and judging a conforming answer allocates nothing once warm (DESIGN §Budgets), but
//! for the inspector's own copy of the request's id and its list of slices.

#[path = "../benches/common/mod.rs"]
mod common;

use bytes::Bytes;
use mcpproxy::output::{Finding, Inspector, MissingContent, Policy, Treatment};
use mcpproxy::schema::compile::{Settings, compile};
use mcpproxy::schema::judge::{Scratch, Verdict};

/// The id, the chunk beside the body, the slice of the document.
const PER_ANSWER: u64 = 3;

fn judge(schema: &mcpproxy::schema::compile::Schema, scratch: &mut Scratch, whole: &Bytes) {
    let mut inspector = Inspector::new(Treatment::Hold, &Policy::default(), 42, 1);
    assert!(inspector.feed(whole).is_ok());
    assert!(inspector.end().is_ok());
    assert_eq!(inspector.finding(MissingContent::Allow), Finding::AskTheSchema);
    let judgement = schema.judge(inspector.document(), scratch);
    assert_eq!(judgement.verdict, Verdict::Conforms);
}

#[test]
fn a_conforming_answer_is_judged_without_allocating_for_its_content() {
    let schema = compile(common::SCHEMA.as_bytes(), &Settings::default()).unwrap();
    for (name, size) in common::SIZES {
        let whole = Bytes::from(common::response(size));
        let policy = Policy::default();
        if size as u64 > policy.max_bytes {
            continue;
        }
        let mut scratch = Scratch::new();
        judge(&schema, &mut scratch, &whole);
        judge(&schema, &mut scratch, &whole);
        let counted = allocation_counter::measure(|| judge(&schema, &mut scratch, &whole));
        assert!(counted.count_total <= PER_ANSWER, "{name}: {}", counted.count_total);
    }
}
